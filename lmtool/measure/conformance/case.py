"""Cases as data: read from the TOML files beside this module, checked against the rules, the steps and the checks."""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from lmtool.measure.conformance.case_script import CLIENT_STEPS, SERVER_STEPS, ScriptError, parse
from lmtool.measure.conformance.checks import CHECKS
from lmtool.measure.conformance.client_checks import CLIENT_CHECKS
from lmtool.measure.conformance.rules import GRADES, rules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.measure.conformance.case_script import Step
    from lmtool.measure.conformance.rules import Grade

Role: TypeAlias = Literal["server", "client"]
"""The side under test."""
Weight: TypeAlias = Literal["fail", "non-strict", "info"]
"""What it means when an expectation does not hold."""

_FILES: Mapping[Role, tuple[str, ...]] = {
    "server": (
        "transport",
        "framing",
        "streams",
        "generate",
        "logprobs",
        "score",
        "extensions",
        "text",
        "buffers",
        "models",
    ),
    "client": ("requests", "answers", "endings"),
}
"""In the order in which cases are run. Those of unknown models come last: LMQL's server loads again after them."""
_MEMBERS = {"id", "rules", "title", "needs", "script", "expect", "exit", "info"}
NEEDS = ("lmtp", "eos", "context", "running", "cancel", "stop", "sampling", "seed", "logprobs_mode", "text", "chat",
          "prefill_only", "generated", "deadline", "cache_salt", "client", "logprob_token_ids", "reasoning",
          "score_alternatives", "usage", "error_code",
          "error_details", "ignored", "progress", "system", "list", "limits", "models", "buffers", "fingerprint",
          "key_limits", "watch",
          "key")  # fmt: skip
"""What a case may need of a server: knowledge of it, a key that it asks for, or an extension that it announces."""


class CaseError(ValueError):
    """A file of cases is not as it should be: a mistake of ours."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One thing that must hold after a script."""

    check: str
    """Name of the check."""
    arguments: Mapping[str, Any]
    weight: Weight = "fail"


@dataclass(frozen=True, slots=True)
class Case:
    """One case."""

    id: str
    role: Role
    title: str
    """What holds where it passes, in a sentence."""
    rules: tuple[str, ...]
    """Ids of the rules that it rests on; the first one gives its grade."""
    needs: tuple[str, ...]
    script: tuple[Step, ...]
    expect: tuple[Expectation, ...]
    exit: Literal["ok", "failure", "any"] = "any"
    """How a client command must end."""
    bare_info: bool = False
    """True if the suite's server answers MODEL_INFO with a bare object."""

    @property
    def label(self) -> str:
        """Its id, rules and grade."""
        return f"{self.id}  [{', '.join(self.rules)} · {self.grade}]"

    @property
    def junit_name(self) -> tuple[str, str]:
        """A case's class is its role and first rule."""
        return f"{self.role}.{self.rules[0]}", self.id

    def matches(self, pattern: str) -> bool:
        """True if a glob fits its id."""
        return fnmatchcase(self.id, pattern)

    @property
    def grade(self) -> Grade:
        """The grade of its first rule."""
        return rules()[self.rules[0]].grade

    @property
    def sentence(self) -> str:
        """The text of its first rule."""
        return rules()[self.rules[0]].sentence


@cache
def cases(role: Role) -> tuple[Case, ...]:
    """All cases for peers of a role, in the order in which they are run."""
    folder = files("lmtool.measure.conformance").joinpath("cases", role)
    tables = [tomllib.loads(folder.joinpath(f"{name}.toml").read_text("utf-8")) for name in _FILES[role]]
    return tuple(read(table, role) for file in tables for table in file["case"])


def read(table: Mapping[str, Any], role: Role) -> Case:
    """One case of a file. Raises `CaseError`."""
    name = table.get("id", "without an id")
    try:
        _known(list(table), tuple(_MEMBERS), "the case")
        steps = parse(table.get("script", ""), SERVER_STEPS if role == "server" else CLIENT_STEPS)
        return Case(
            id=_text(table, "id"),
            role=role,
            title=_text(table, "title"),
            rules=_known(table["rules"], rules(), "rules"),
            needs=_known(table.get("needs", []), NEEDS, "needs"),
            script=steps,
            expect=tuple(_expectation(one, role) for one in table.get("expect", [])),
            exit=table.get("exit", "any"),
            bare_info=table.get("info") == "bare",
        )
    except (CaseError, ScriptError, KeyError) as error:
        raise CaseError(f"{role} case {name}: {error}") from None


def _text(table: Mapping[str, Any], member: str) -> str:
    value = table[member]
    if not isinstance(value, str) or not value:
        raise CaseError(f"{member} is {value!r}; expected a text")
    return value


def _known(names: list[str], known: Mapping[str, object] | tuple[str, ...], member: str) -> tuple[str, ...]:
    strange = [one for one in names if one not in known]
    if strange:
        raise CaseError(f"{member} has {strange}, which do not exist")
    return tuple(names)


def _expectation(table: Mapping[str, Any], role: Role) -> Expectation:
    arguments = dict(table)
    check, weight = arguments.pop("check"), arguments.pop("weight", "fail")
    known: Mapping[str, Callable[..., object]] = CHECKS if role == "server" else CLIENT_CHECKS
    if check not in known:
        raise CaseError(f"there is no check {check!r}")
    if weight not in get_args(Weight):
        raise CaseError(f"weight {weight!r} is none of {get_args(Weight)}")
    try:
        inspect.signature(known[check]).bind(None, **arguments)
    except TypeError as error:
        raise CaseError(f"check {check!r}: {error}") from None
    return Expectation(check, arguments, cast("Weight", weight))


def select(known: tuple[Case, ...], grades: tuple[Grade, ...] = GRADES, only: tuple[str, ...] = ()) -> list[Case]:
    """The cases of these grades whose id, or a rule of theirs, fits one of the glob patterns (none: all)."""
    return [
        case
        for case in known
        if case.grade in grades
        and (not only or any(fnmatchcase(name, glob) for name in (case.id, *case.rules) for glob in only))
    ]
