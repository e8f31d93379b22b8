"""Chat templates: the text of a conversation in the format that the model was trained on, rendered in a sandbox."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from datetime import datetime
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lmtool.core.errors import RequestError
from lmtool.core.tool_arguments import arguments_object
from lmtool.core.types import ROLES, ChatPrompt
from lmtool.inference.text.workers import TRUSTED, call_early, run_isolated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Template
    from jinja2.parser import Parser

    from lmtool.core.types import ChatMessage, ToolCall

MAX_CHARACTERS = 16 * 2**20
"""Longest rendered conversation in characters, several times the size of a frame."""
REASONING = ("reasoning_content", "thinking")
"""Names of an earlier turn's thought in templates: Qwen, DeepSeek and GLM; GPT-OSS."""
_FAILURES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions of a template's own expressions, in addition to Jinja's errors."""


class ChatTemplate:
    """One model's chat template, rendered as transformers does.

    No Python attributes, no changes to what it is given, at most `MAX_CHARACTERS` of output. Every template but the
    included model's is rendered in another process, which bounds its time and memory, see `workers`.
    """

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        """Keep a template. tokens: `bos_token`, `eos_token` and such by name, as the template may print them."""
        self._source = source
        self._tokens = dict(tokens)

    def render(self, chat: ChatPrompt) -> str:
        """Return the conversation as text, up to the start of the assistant's answer; `prefill` is not included.

        `add_generation_prompt` (true) and `documents` (none) are variables of `chat_template_kwargs`.

        Raises `RequestError` for a role that neither `ROLES` nor the template has (many templates would render any
        word), and when the template refuses the messages (with its own words), fails, or cannot be read.
        """
        if not chat.messages:
            raise RequestError("messages is empty", "send at least one message")
        for index, message in enumerate(chat.messages):
            if message.role not in ROLES and not self._names(message.role):
                raise RequestError(
                    f"messages[{index}].role is {message.role!r:.60}; expected one of {', '.join(ROLES)}",
                    "or one that the model's chat template names",
                )
        if chat.chat_template_kwargs.get("documents") and "documents" not in self._source:
            raise RequestError(
                "the model's chat template shows no documents, so it would answer without them",
                "put their text into a message",
            )
        try:
            return self._with_tools(chat)
        except TemplateSyntaxError as error:
            raise RequestError(
                f"the model's chat template cannot be read: line {error.lineno}: {error.message}",
                "send a prompt without a template",
            ) from error
        except TemplateError as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {error}",
                "change the messages, or send a prompt without a template",
            ) from error
        except _FAILURES as error:
            raise RequestError(
                f"the model's chat template fails on these messages: {type(error).__name__}: {error}",
                "change the messages, or send a prompt without a template",
            ) from error

    def render_parts(self, chat: ChatPrompt) -> tuple[str | tuple[int, ...], ...]:
        """Return `render`'s text in parts, with token ids in place of the turns that have `tokens`.

        Raises the errors of `render`, and `RequestError` for a template that does not print such a turn unchanged once.
        """
        parts: list[str | tuple[int, ...]] = [self.render(_marked(chat))]
        for index, message in enumerate(chat.messages):
            if message.tokens is None:
                continue
            before, *behind = str(parts.pop()).split(_mark(index))
            if len(behind) != 1:
                raise RequestError(
                    f"the model's chat template does not show messages[{index}] as it is, so its tokens have no place",
                    "send its content",
                )
            parts += [before, message.tokens, *behind]
        return tuple(parts)

    def _names(self, role: str) -> bool:
        """True if the template contains this role as a quoted string."""
        return f"'{role}'" in self._source or f'"{role}"' in self._source

    def _with_tools(self, chat: ChatPrompt) -> str:
        """Render; if the template fails on tools without a description, retry with empty ones."""
        try:
            return self._render(chat)
        except (TemplateError, *_FAILURES):
            completed = tuple(map(_completed, chat.tools))
            if completed == chat.tools:
                raise
            return self._render(replace(chat, tools=completed))

    def _render(self, chat: ChatPrompt) -> str:
        if self._source in TRUSTED:
            return self.text(chat)
        return run_isolated(self._source, partial(_text, self._source, tuple(self._tokens.items())), chat)

    def text(self, chat: ChatPrompt) -> str:
        """Render in this process. Raises the errors of Jinja and of the template's expressions."""
        found: list[str] = []
        length = 0
        variables: dict[str, object] = {
            **self._tokens,
            "documents": None,
            "add_generation_prompt": True,
            **chat.chat_template_kwargs,
            "messages": [_turn(message) for message in chat.messages],
            "tools": list(chat.tools) or None,
        }
        for text in self._compiled.generate(variables):
            found.append(text)
            length += len(text)
            if length > MAX_CHARACTERS:
                raise SecurityError(f"it gives more than {MAX_CHARACTERS} characters")
        return "".join(found)

    @cached_property
    def _compiled(self) -> Template:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        return environment.from_string(self._source)


def _completed(tool: Mapping[str, object]) -> Mapping[str, object]:
    """Tool with the optional members of the API filled in: empty description, no parameters."""
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    given = function.get("parameters")
    parameters = {"properties": {}, **(given if isinstance(given, dict) else {"type": "object"})}
    return {**tool, "function": {"description": "", **function, "parameters": parameters}}


def prepare(*, isolated: bool) -> None:
    """Start a rendering process in the background, if templates are isolated."""
    if isolated:
        call_early(partial(_text, "", (), ChatPrompt(())))


@lru_cache(maxsize=8)
def _template(source: str, tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    """Template with these tokens, compiled once per process."""
    return ChatTemplate(source, dict(tokens))


def _text(source: str, tokens: tuple[tuple[str, str], ...], chat: ChatPrompt) -> str:
    return _template(source, tokens).text(chat)


_MARK = secrets.token_hex(16)
"""Placeholder for token ids while a template is rendered; random, so no text contains it."""


def _mark(index: int) -> str:
    return f"{_MARK}-{index}-"


def _marked(chat: ChatPrompt) -> ChatPrompt:
    """Conversation with placeholders for the turns given as ids, including their thoughts."""
    turns = (
        turn if turn.tokens is None else replace(turn, content=_mark(index), reasoning="")
        for index, turn in enumerate(chat.messages)
    )
    return replace(chat, messages=tuple(turns))


def _turn(message: ChatMessage) -> dict[str, object]:
    """Message in the form that templates read; arguments of tool calls are objects there."""
    turn: dict[str, object] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _Arguments(call)}}
            for call in message.tool_calls
        ]
    if message.reasoning:
        turn |= dict.fromkeys(REASONING, message.reasoning)
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        turn["name"] = message.name
    return turn


class _Arguments(dict[str, object]):
    """Arguments of a tool call: an object for most templates, and text for those that print or concatenate it."""

    def __init__(self, call: ToolCall) -> None:
        super().__init__(arguments_object(call.arguments))
        self._text = call.arguments or "{}"

    def __str__(self) -> str:
        return self._text

    def __add__(self, behind: object) -> str:
        return f"{self._text}{behind}"

    def __radd__(self, before: object) -> str:
        return f"{before}{self._text}"


class _Generation(Extension):
    """The `{% generation %}` tag, which marks the assistant's words for training; here it only prints its body."""

    tags = {"generation"}  # noqa: RUF012 -- Jinja's own declaration of this attribute, not to be changed here

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without HTML escapes, unlike Jinja's own filter; parameters as in transformers."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
