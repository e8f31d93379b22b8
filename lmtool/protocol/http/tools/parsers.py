"""How models write calls of tools: each form by its name, with what reads it and what an answer in it must match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.protocol.http.tools.argument_types import ArgumentTypes
from lmtool.protocol.http.tools.call_grammar import CallContext, CallGrammar
from lmtool.protocol.http.tools.deltas import Plain, Reader
from lmtool.protocol.http.tools.feed import Feed, Reading, ScriptedReader
from lmtool.protocol.http.tools.formats import (
    call_list,
    deepseek,
    glm,
    gpt_oss,
    granite,
    hermes,
    kimi_k2,
    llama3,
    mistral,
    pythonic,
    qwen3_coder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.protocol.http.tools.call_grammar import Part
    from lmtool.protocol.http.tools.definitions import Tool, ToolUse


class CallListReader(ScriptedReader):
    """`[{"name": ..., "parameters": {...}}, ...]` and nothing else: what a constraint makes where a call must be."""

    def __init__(self) -> None:
        super().__init__(call_list.read)


@dataclass(frozen=True, slots=True)
class ToolCallParser:
    """One way in which models write calls."""

    name: str
    script: Callable[[Feed], Reading] | None = None
    """Reads an answer; None: every answer is text."""
    typed_script: Callable[[Feed, ArgumentTypes], Reading] | None = None
    """The same, where the types of arguments are known from the tools' schemas only."""
    marks: tuple[str, ...] = ()
    """What may be special tokens, which do not show as text otherwise."""
    grammar: CallGrammar | None = None
    """What calls in this form match."""
    holds_forced: bool = True
    """Whether a call that must be is written in this form, too; otherwise as an array of JSON objects."""
    id_length: int | None = None
    """How long the ids of calls must be for its templates; None: any length."""

    def reader(self, tools: Sequence[Tool] = ()) -> Reader:
        """A reader for one answer that may call these tools."""
        if self.typed_script is not None:
            script, types = self.typed_script, ArgumentTypes(tools)
            return ScriptedReader(lambda feed: script(feed, types))
        return Plain() if self.script is None else ScriptedReader(self.script)

    def calls(self, tools: ToolUse, special: Mapping[str, int]) -> Part | None:
        """What an answer of nothing but calls matches; None in a form that has no grammar.

        special: those of the marks that are special tokens, with their ids. Raises `ConstraintError`.
        """
        return None if self.grammar is None else self.grammar.section(CallContext(tools, special))

    def calls_beside_text(self, tools: ToolUse, special: Mapping[str, int]) -> Part | None:
        """What an answer matches that is free text with calls in it; None where no mark tells the one from the other.

        See `calls`.
        """
        return None if self.grammar is None else self.grammar.beside_text(CallContext(tools, special))


_DEEPSEEK_MARKS = (deepseek.CALLS, deepseek.CALLS_END, deepseek.CALL, deepseek.CALL_END, deepseek.SEPARATOR)
_FORMS = (
    ToolCallParser("none"),
    ToolCallParser(
        "hermes",
        hermes.read,
        marks=(hermes.OPENING, hermes.CLOSING),
        grammar=hermes.GRAMMAR,
        holds_forced=False,
    ),
    ToolCallParser("llama3_json", llama3.read, marks=(llama3.TAG,), grammar=llama3.GRAMMAR, holds_forced=False),
    ToolCallParser(
        "mistral",
        mistral.read,
        marks=(mistral.OPENING, mistral.ARGUMENTS, mistral.CALL_ID),
        grammar=mistral.GRAMMAR,
        holds_forced=False,
        id_length=9,
    ),
    ToolCallParser(
        "qwen3_coder",
        typed_script=qwen3_coder.read,
        marks=(qwen3_coder.OPENING, qwen3_coder.CLOSING),
        grammar=qwen3_coder.GRAMMAR,
    ),
    ToolCallParser(
        "glm45",
        typed_script=glm.read,
        marks=(glm.OPENING, glm.CLOSING, glm.KEY, glm.KEY_END, glm.VALUE, glm.VALUE_END),
        grammar=glm.GRAMMAR,
    ),
    ToolCallParser("deepseek_v3", deepseek.read, marks=_DEEPSEEK_MARKS, grammar=deepseek.V3_GRAMMAR),
    ToolCallParser("deepseek_v31", deepseek.read, marks=_DEEPSEEK_MARKS, grammar=deepseek.V31_GRAMMAR),
    ToolCallParser(
        "kimi_k2",
        kimi_k2.read,
        marks=(kimi_k2.SECTION, kimi_k2.SECTION_END, kimi_k2.CALL, kimi_k2.CALL_END, kimi_k2.ARGUMENTS),
        grammar=kimi_k2.GRAMMAR,
    ),
    ToolCallParser("granite", granite.read, marks=(granite.OPENING,), grammar=granite.GRAMMAR),
    ToolCallParser(
        "granite-20b-fc", granite.read_functions, marks=(granite.FUNCTION,), grammar=granite.FUNCTION_GRAMMAR
    ),
    # The reader of thoughts shows its marks as text; a call that must be stands behind the thought, on `final`.
    ToolCallParser("openai", gpt_oss.read),
    ToolCallParser("pythonic", pythonic.read, marks=(pythonic.OPENING, pythonic.CLOSING), grammar=pythonic.GRAMMAR),
)
_ALSO = {
    "qwen3_xml": "qwen3_coder",
    "glm47": "glm45",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "granite4": "hermes",
}
"""Further names of vLLM's, each of a form that has another one here."""

TOOL_CALL_PARSERS = {form.name: form for form in _FORMS}
"""By the names that vLLM gives them."""
TOOL_CALL_PARSERS |= {name: TOOL_CALL_PARSERS[form] for name, form in _ALSO.items()}
