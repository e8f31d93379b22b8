"""The rules of the specification: id, grade and text, read from SPEC.md itself so that they cannot drift."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, TypeAlias, cast, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping

Grade: TypeAlias = Literal["must", "compat", "beyond"]
"""`must`: the LMTP document; `compat`: what LMQL 0.7.3 needs; `beyond`: lmtool's own."""
GRADES: tuple[Grade, ...] = get_args(Grade)

_RULE = re.compile(r"^\*\*([A-Z]+-\d+)\*\* \((must|compat|beyond)\) (.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of SPEC.md."""

    id: str
    """Such as `GEN-3`."""
    grade: Grade
    sentence: str
    """Its first sentence, on one line."""


@cache
def rules() -> Mapping[str, Rule]:
    """All rules by id, in the order of the specification."""
    text = files("lmtool.protocol.lmtp").joinpath("SPEC.md").read_text("utf-8")
    return {
        name: Rule(name, cast("Grade", grade), _first_sentence(" ".join(body.split())))
        for name, grade, body in _RULE.findall(text)
    }


def _first_sentence(text: str) -> str:
    end = re.search(r"\.(?= [A-Z(`]|$)", text)
    return text if end is None else text[: end.end()]
