"""Chat templates: a conversation as text in the format that the model was trained on."""

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from transformer_jax.errors import InputError, shortened
from transformer_jax.outside_files import Json, as_input_error, outside_file, read_json
from transformer_jax.tasks.tokenization import import_extra

TEMPLATE, SETTINGS, SPECIAL = (
    "chat_template.jinja",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
MAX_FILE_BYTES = 2**22
Message = Mapping[str, object]  # {"role": "user", "content": "…"}


def chat_text(directory: Path, messages: Sequence[Message]) -> str:
    """Render a conversation, with special tokens, up to the point where the model answers.

    The template is `chat_template.jinja`, or the entry `chat_template` of `tokenizer_config.json`. It runs in the
    sandbox of `jinja2`, with the same variables and functions as in `apply_chat_template` of `transformers`.

    Raises:
        InputError: the directory has no template; the template is damaged or rejects the messages; a message is not a
            mapping; or `jinja2` is not installed.
    """
    if not messages or not all(isinstance(message, Mapping) for message in messages):
        raise InputError(
            f'messages is {shortened(messages)}; it must be a list of {{"role": …, "content": …}}'
        )
    settings: Json = {}
    for file in (directory / SPECIAL, directory / SETTINGS):
        if os.path.lexists(file):
            settings |= read_json(file)
    variables: Json = {
        "messages": list(map(dict, messages)),
        "add_generation_prompt": True,
        "tools": None,
        "documents": None,
    }
    for name, value in settings.items():
        token = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(token, str):
            variables[name] = token
    source = _template(directory, settings)
    environment = _environment()
    # a template may raise any exception
    with as_input_error(f"the chat template of {directory} cannot be used", Exception):
        text: str = environment.from_string(source).render(variables)
    return text


def _template(directory: Path, settings: Json) -> str:
    if os.path.lexists(directory / TEMPLATE):
        with outside_file(directory / TEMPLATE, "a chat template", MAX_FILE_BYTES) as file:
            return file.read_text("utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not isinstance(template, str):
        raise InputError(
            f"{directory} has no {TEMPLATE}, nor a chat_template in {SETTINGS}; use predict instead"
        )
    return template


def _environment() -> Any:  # of a library that is imported when it is needed
    """The sandbox in which templates run, with the functions that they may call."""
    sandbox = import_extra("jinja2.sandbox")

    def raise_exception(message: str) -> NoReturn:
        raise ValueError(message)

    # jinja2's own filter escapes HTML
    def to_json(value: object, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment
