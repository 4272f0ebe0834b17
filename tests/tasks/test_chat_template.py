"""Conversations, rendered by the chat templates in tokenizers' files, and a model's answers to them."""

import json

import pytest
import tokenizers
import transformers
from huggingface_models import drawn_of_31_tokens
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from transformer_jax import InputError, load_transformers
from transformer_jax.tasks.chat_template import chat_text

TEMPLATE = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'nobody' %}{{ raise_exception('who is nobody?') }}{% endif %}
    {%- if loop.index0 == 2 %}{% break %}{% endif %}
{{ message['role'] }} {{ message['content'] | trim }} {{ eos_token }}
{% endfor %}
{%- if tools is none and add_generation_prompt %}assistant {{ messages[0] | tojson }} {% endif %}"""
MESSAGES = [
    {"role": "system", "content": "be w7 "},
    {"role": "user", "content": "w8 <w9> w8"},
    {"role": "user", "content": "w6"},
]
TEXT = '<s>system be w7 </s>\nuser w8 <w9> w8 </s>\nassistant {"role": "system", "content": "be w7 "} '


@pytest.fixture
def files(tmp_path):
    """The files of a tokenizer with a template."""
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": {"content": "</s>"}}')
    return tmp_path


def with_template(directory, template):
    """Directory with the template in its older location."""
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    return directory


def test_a_conversation_is_rendered_with_the_special_tokens(files):
    assert chat_text(files, MESSAGES) == TEXT
    (files / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    (files / "special_tokens_map.json").write_text('{"bos_token": "", "eos_token": "</s>"}')
    assert chat_text(files, MESSAGES) == TEXT


def test_the_template_may_stand_in_the_tokenizer_s_settings_alone_or_as_one_of_several(files):
    assert chat_text(with_template(files, TEMPLATE), MESSAGES) == TEXT
    several = [{"name": "tool_use", "template": "other"}, {"name": "default", "template": TEMPLATE}]
    assert chat_text(with_template(files, several), MESSAGES) == TEXT


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat_template.jinja, nor a chat_template in tokenizer_config.json"),
        ("{% for %}", "the chat template of .* cannot be used (.*)"),
        ("{{ messages.append(1) }}", "cannot be used .*(unsafe|append)"),
        ("{{ ''.__class__.__mro__ }}", "cannot be used .*unsafe"),
        ("{{ raise_exception('no user') }}", "cannot be used .no user."),
    ],
)
def test_a_template_that_is_missing_damaged_or_unsafe_or_refuses_is_one_line(files, template, message):
    with pytest.raises(InputError, match=message) as caught:
        chat_text(with_template(files, template), MESSAGES)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("messages", ["hello", [], ["hello"]])
def test_messages_are_mappings(files, messages):
    with pytest.raises(InputError, match='messages is .*; it must be a list of {"role": …, "content": …}'):
        chat_text(files, messages)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_model_answers_a_conversation_as_with_transformers(files):
    words = ["<s>", "</s>", "system", "user", "assistant", "be", *(f"w{number}" for number in range(6, 31))]
    pieces = tokenizers.Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="be"))
    pieces.pre_tokenizer = WhitespaceSplit()
    pieces.add_special_tokens(words[:2])
    pieces.post_processor = TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])  # which the template writes too
    model = drawn_of_31_tokens("gpt2")
    model.save_pretrained(files)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=pieces, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(files)
    given = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert given["input_ids"][0].tolist().count(0) == 1
    expected = model.generate(**given, max_new_tokens=7, do_sample=False)[0, given["input_ids"].shape[1] :]
    run = load_transformers(files)
    assert run.chat(MESSAGES, max_new=7) == tokenizer.decode(expected, skip_special_tokens=True)
    assert run.chat(MESSAGES, max_new=7, temperature=9.0) != run.chat(MESSAGES, max_new=7)
