"""The server under test: names, limits and extensions, from its own description or from options of the suite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.measure.conformance.case import Case

LONG = 120
"""Tokens of a stream that is to run for a while."""
_OUTSIDE = 100_000_000
"""An id that no vocabulary has."""


@dataclass(frozen=True, slots=True)
class ServerUnderTest:
    """A server, and token ids that its model takes."""

    model: str | None = None
    """The name to ask for."""
    prompt: tuple[int, ...] = (5, 6, 7, 8)
    """Four ids or more; the model's eos is not among them."""
    eos: int | None = None
    ends: tuple[int, ...] = ()
    """All ids that end a stream, `eos` among them."""
    info: Mapping[str, object] | None = None
    """The `model_info` it told, where that is an object."""
    key: str | None = field(default=None, repr=False)
    """The API key that it requires, from an option of the suite."""

    @classmethod
    def of(
        cls,
        info: object,
        *,
        model: str | None = None,
        prompt: tuple[int, ...] | None = None,
        eos: int | None = None,
        key: str | None = None,
    ) -> ServerUnderTest:
        """From its MODEL_INFO; an argument wins."""
        facts = info if isinstance(info, dict) else {}
        name, eos_ids = facts.get("model"), facts.get("eos_token_ids")
        known = [i for i in eos_ids if type(i) is int] if isinstance(eos_ids, list) else []
        end = eos if eos is not None else next(iter(known), None)
        ids = prompt or tuple(i for i in range(5, 16) if i not in (*known, end))[:4]
        ends = tuple(dict.fromkeys((*known, *(() if end is None else (end,)))))
        return cls(model or (name if isinstance(name, str) else None), ids, end, ends, facts, key)

    @property
    def extensions(self) -> set[str]:
        """Those it announces."""
        names = (self.info or {}).get("extensions")
        return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()

    def missing(self, case: Case) -> str:
        """Why a case cannot be run; empty where it can."""
        for need in case.needs:
            reason = self._missing(need)
            if reason:
                return reason
        variables = {name for step in case.script for name in step.variables}
        if "all_but_forced" in variables and self._number("vocab_size") is None:
            return "the server tells no vocab_size"
        return ""

    def _missing(self, need: str) -> str:
        facts = self.info or {}
        if need == "eos":
            return "" if self.eos is not None else "the server tells no eos id; name one with --eos"
        if need == "context":
            return "" if self._number("context_length") is not None else "the server tells no context_length"
        if need == "running":
            return "" if self._number("running") is not None else "the server does not tell how many streams run"
        if need == "chat":
            return "" if facts.get("chat_template") is True else "the model has no chat template"
        if need == "key":
            return "" if self.key is not None else "no key was given, so the server may ask for none: --api-key KEY"
        if need == "lmtp":
            return "" if "lmtp" in facts else "the server does not say that it knows lmtool's document"
        return "" if need in self.extensions else f"the server does not announce the extension {need!r}"

    def _number(self, name: str) -> int | None:
        value = (self.info or {}).get(name)
        return value if type(value) is int else None

    @property
    def long(self) -> int:
        """Tokens of a long stream that still fit into the context."""
        context = self._number("context_length")
        return LONG if context is None else max(8, min(LONG, context - len(self.prompt) - 2))

    @property
    def forced(self) -> int:
        """An id that is neither eos nor at the prompt's beginning."""
        return self.prompt[-1]

    def value(self, name: str) -> object:
        """The value of a variable of a script. Raises `KeyError` for a name that scripts do not know."""
        outside = max(self._number("vocab_size") or 0, _OUTSIDE)
        plain: dict[str, object] = {
            "null": None,
            "model": self.model,
            "prompt": list(self.prompt[:4]),
            "several": [*self.prompt[:4], *reversed(self.prompt[:4])],
            "eos": self.eos,
            "no_eos": {str(i): -100 for i in self.ends},
            "forced": self.forced,
            "outside": outside,
            "text": "Once upon a time",
            "long": self.long,
            "longer": self.long + 1,
        }
        if name == "all_but_forced":
            return {str(i): -100 for i in range(self._number("vocab_size") or 0) if i != self.forced}
        if name == "overlong":
            return [self.prompt[0]] * ((self._number("context_length") or 0) + 1)
        return plain[name]
