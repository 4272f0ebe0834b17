"""Chat templates: a conversation as text in the format that the model was trained on."""

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from transformer_jax.errors import InputError, in_one_line, shortened
from transformer_jax.outside_files import Json, outside_file, read_json
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
    files = [
        read_json(directory / name)
        for name in (SPECIAL, SETTINGS)
        if os.path.lexists(directory / name)
    ]
    settings: Json = {name: value for file in files for name, value in file.items()}
    source = _template(directory, settings)
    tokens = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in settings.items()
    }
    special = {
        name: value
        for name, value in tokens.items()
        if name.endswith("_token") and isinstance(value, str)
    }
    given = {"messages": [dict(message) for message in messages], "add_generation_prompt": True}
    environment = _environment()
    try:
        text: str = environment.from_string(source).render(
            **special, **given, tools=None, documents=None
        )
    except Exception as error:  # a template may raise any exception
        raise InputError(
            f"the chat template of {directory} cannot be used: {in_one_line(error)}"
        ) from error
    return text


def _template(directory: Path, settings: Json) -> str:
    if os.path.lexists(directory / TEMPLATE):
        with outside_file(directory / TEMPLATE, "a chat template", MAX_FILE_BYTES) as file:
            return file.read_text("utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):  # several named templates
        found = {
            each.get("name"): each.get("template") for each in found if isinstance(each, dict)
        }.get("default")
    if not isinstance(found, str):
        raise InputError(
            f"{directory} has no {TEMPLATE}, nor a chat_template in {SETTINGS}; use predict instead"
        )
    return found


def _environment() -> Any:  # of a library that is imported when it is needed
    """The sandbox in which templates run, with the functions that they may call."""
    sandbox = import_extra("jinja2.sandbox")

    def raise_exception(message: str) -> NoReturn:
        raise ValueError(message)

    # jinja2's own filter escapes HTML
    def to_json(value: object, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    found = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    found.filters["tojson"] = to_json
    found.globals |= {"raise_exception": raise_exception, "strftime_now": _now}
    return found


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
