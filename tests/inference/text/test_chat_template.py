"""Chat templates render as transformers renders them, in a sandbox."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from lmtool.core.errors import RequestError
from lmtool.core.tool_arguments import object_text
from lmtool.core.types import ROLES, ChatMessage, ChatPrompt, ToolCall
from lmtool.inference.text import chat_template
from lmtool.inference.text.chat_template import ChatTemplate

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

CHATML = """{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nYou are a test.<|im_end|>\\n' }}
    {% endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{% endif %}
"""
FOLD = """{% if messages[0]['role'] == 'system' %}
{% set turns = messages[1:] %}{% set system = messages[0]['content'] %}
{% else %}{% set turns = messages %}{% set system = false %}{% endif %}
{% for m in turns %}
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must take turns: user, assistant, user, ...') }}
{% endif %}
{% if loop.index0 == 0 and system != false %}{% set text = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + m['content'] %}
{% else %}{% set text = m['content'] %}{% endif %}
{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}
{% elif m['role'] == 'assistant' %}{{ ' ' + text.strip() + ' ' + eos_token }}{% endif %}
{% endfor %}"""
TOOLS = """{{- bos_token }}
{%- set ns = namespace(seen=0) %}
{%- if tools is not none %}{{ tools | tojson }}{% endif %}
{%- for m in messages if m.role != 'tool' %}
{%- if m.role == 'skip' %}{% continue %}{% endif %}
{%- if m.role == 'end' %}{% break %}{% endif %}
{%- set ns.seen = ns.seen + 1 %}
{%- generation %}{{ ns.seen }}:{{ m | tojson(indent=2) }}{% endgeneration %}
{%- endfor %}
{{ undefined_name }}{{ strftime_now('%Y') | length }}{{ {'a': [1, '<é&>']} | tojson }}{{ 'x' * 3 }}{{ 2 ** 5 }}
{%- macro shout(word) %}{{ word | upper }}{% endmacro %}{{ shout(messages[-1].content) }}"""

CHATS = {
    "one": [ChatMessage("user", "Hi <b>&amp;</b> 'there'")],
    "system": [ChatMessage("system", "Be brief."), ChatMessage("user", " Hé? ")],
    "turns": [ChatMessage("user", "a"), ChatMessage("assistant", "b\n"), ChatMessage("user", "c 🙂")],
    "roles": [ChatMessage("user", "a"), ChatMessage("skip", "b"), ChatMessage("tool", "c"), ChatMessage("end", "d")],
    "bad turns": [ChatMessage("user", "a"), ChatMessage("user", "b")],
}


@pytest.fixture(scope="module")
def theirs() -> Callable[[str, list[ChatMessage]], str]:
    """Render with transformers."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **TOKENS)

    def render(template: str, messages: list[ChatMessage]) -> str:
        turns = [{"role": message.role, "content": message.content} for message in messages]
        return tokenizer.apply_chat_template(turns, chat_template=template, add_generation_prompt=True, tokenize=False)

    return render


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("template", [CHATML, FOLD, TOOLS], ids=["chatml", "fold", "tools"])
def test_equals_transformers(template: str, chat: str, theirs: Callable[[str, list[ChatMessage]], str]) -> None:
    """A template gives the text that transformers gives, or refuses in the same words."""
    from jinja2 import TemplateError

    messages = CHATS[chat]
    if "'skip'" not in template and chat == "roles":  # see test_roles
        messages = [message for message in messages if message.role in ROLES]
    try:
        expected = theirs(template, messages)
    except TemplateError as error:
        with pytest.raises(RequestError, match=str(error)):
            ChatTemplate(template, TOKENS).render(ChatPrompt(tuple(messages)))
    else:
        assert ChatTemplate(template, TOKENS).render(ChatPrompt(tuple(messages))) == expected


CALLING = """{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}
{% for m in messages %}{{ m.role }}|{{ m.content }}
{% for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}{% if m.tool_call_id %}for {{ m.tool_call_id }} by {{ m.name }}{% endif %}{% endfor %}
{% if thinking %}think{% endif %}"""


def test_tools_equal_transformers() -> None:
    """Tools, calls with their arguments as objects, what tools answered, and options of the template's own."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": ["é"]}}}
    theirs = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **TOKENS).apply_chat_template(
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "b", "tool_call_id": "1", "name": "f"},
        ],
        tools=[tool],
        chat_template=CALLING,
        add_generation_prompt=True,
        tokenize=False,
        thinking=True,
    )
    turns = [
        ChatMessage("user", "a"),
        ChatMessage("assistant", "", (ToolCall("1", "f", '{"a": ["é"]}'),)),
        ChatMessage("tool", "b", tool_call_id="1", name="f"),
    ]
    assert ChatTemplate(CALLING, TOKENS).render(ChatPrompt(tuple(turns), (tool,), {"thinking": True})) == theirs


@pytest.mark.parametrize(
    "shown",
    [
        "{{ 'f' + a + '.' }}",
        "{{ ['f', a, '.'] | join }}",
        "f{{ a }}.",
        "{{ ('f' ~ a) + '.' }}",
        "f{% if a is string %}text{% else %}{{ a | tojson }}{% endif %}.",
        'f{ {%- for name, value in a.items() %}"{{ name }}": {{ value }}{% endfor %} }.',
    ],
)
def test_arguments_that_a_template_joins(shown: str) -> None:
    """Earlier calls are shown by templates that take arguments for a text (DeepSeek), and by those for an object."""
    template = "{% for m in messages %}{% for c in m.tool_calls %}{% set a = c.function.arguments %}" + shown
    turns = [ChatMessage("assistant", "", (ToolCall("1", "f", '{"n": 1}'),))]
    rendered = ChatTemplate(template + "{% endfor %}{% endfor %}", TOKENS).render(ChatPrompt(tuple(turns)))
    assert rendered.replace(" ", "") == 'f{"n":1}.'


ITEMS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for name, value in c.function.arguments | items %}"
    "<{{ name }}>{{ value }}</{{ name }}>{% endfor %}{% endfor %}{% endfor %}"
)
"""Arguments one by one, as Qwen3-Coder's, GLM's and Kimi's templates have them."""


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": "cut o', {"INVALID_JSON": '{"a": "cut o'}),
        ('{"a": NaN}', {"INVALID_JSON": '{"a": NaN}'}),
        ('["a", 1]', {"INVALID_JSON": '["a", 1]'}),
        ('"ls"', {"INVALID_JSON": '"ls"'}),
        ("7", {"INVALID_JSON": "7"}),
        ("[" * 100_000, {"INVALID_JSON": "[" * 100_000}),
        ("null", {}),
        ("", {}),
        (' {"a": 1} ', {"a": 1}),
    ],
)
def test_arguments_that_are_no_object(arguments: str, shown: dict[str, object]) -> None:
    """Every template gets an object: a broken call of one turn must not fail all later requests."""
    call = ToolCall("1", "f", arguments)
    chat = ChatPrompt((ChatMessage("user", "?"), ChatMessage("assistant", "", (call,))))
    assert f'"arguments": {json.dumps(shown)}' in ChatTemplate(CALLING, TOKENS).render(chat)
    rendered = "".join(f"<{name}>{value}</{name}>" for name, value in shown.items())
    assert ChatTemplate(ITEMS, TOKENS).render(chat) == rendered
    assert json.loads(object_text(call.arguments)) == shown


HARMONY_TOOLS = (
    "{% for tool in tools %}{% set f = tool.function %}{{ '// ' + f.description + ' type ' + f.name }}"
    "{% for name, one in f.parameters.properties | items %} {{ name }}{% endfor %};{% endfor %}"
)
"""As gpt-oss's and Hermes 3's templates show tools: by joining texts, which fails for one that is not there."""
PLAIN_TOOLS = (
    "{% for tool in tools %}{{ tool | tojson }}{% if tool.function.description is defined %}!{% endif %}{% endfor %}"
)


def test_a_tool_without_description() -> None:
    """Its description is empty where a template needs one; a template that can do without gets the tool as it is."""
    named = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    told = {"type": "function", "function": {"name": "g", "description": "D", "parameters": {"properties": {"x": {}}}}}
    chat = ChatPrompt((ChatMessage("user", "?"),), tools=(named, told))
    assert ChatTemplate(HARMONY_TOOLS, TOKENS).render(chat) == "//  type f;// D type g x;"
    assert ChatTemplate(PLAIN_TOOLS, TOKENS).render(chat) == f"{json.dumps(named)}{json.dumps(told)}!"
    with pytest.raises(RequestError, match="has no attribute"):
        ChatTemplate("{{ 'a' + tools[0].function.colour }}", TOKENS).render(chat)


def test_refusal() -> None:
    """What a template raises reaches the client in its own words."""
    with pytest.raises(RequestError, match=r"Roles must take turns: user, assistant, user, \.\.\."):
        ChatTemplate(FOLD, TOKENS).render(ChatPrompt(tuple(CHATS["bad turns"])))


def test_roles() -> None:
    """A role that the template does not name is refused, though the template would print it."""
    with pytest.raises(RequestError, match=r"messages\[1\].role is 'skip'; expected one of system, developer, user"):
        ChatTemplate(CHATML, TOKENS).render(ChatPrompt(tuple(CHATS["roles"])))
    assert ChatTemplate(TOOLS, TOKENS).render(ChatPrompt(tuple(CHATS["roles"])))


def test_no_messages() -> None:
    """An empty conversation is refused."""
    with pytest.raises(RequestError, match="messages is empty"):
        ChatTemplate(CHATML, TOKENS).render(ChatPrompt(()))


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("\n{% for %}", "cannot be read: line 2"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages + 1 }}", "TypeError"),
        ("{{ messages[0].role.missing.deeper }}", "has no attribute"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ 'a'.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ range(999999999) | list }}", "Range too big"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}" + "x" * 1000 + "{% endfor %}{% endfor %}",
            "more than",
        ),
    ],
)
def test_broken_or_hostile(template: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that fails, or wants too much, refuses its request with the reason, soon."""
    monkeypatch.setattr(chat_template, "MAX_CHARACTERS", 2**20)
    begin = time.process_time()
    with pytest.raises(RequestError, match=reason) as caught:
        ChatTemplate(template, TOKENS).render(ChatPrompt(tuple(CHATS["one"])))
    assert caught.value.hints
    assert time.process_time() - begin < 5
