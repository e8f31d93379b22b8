"""JUnit XML, the form of test results that CI systems read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias
from xml.sax.saxutils import escape, quoteattr

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Result: TypeAlias = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class JUnitCase:
    """One test case."""

    classname: str
    name: str
    seconds: float
    result: Result
    told: str
    """Why it failed or was skipped, its first line as the summary; what else there is to say of one that passed."""


def junit(suite: str, cases: Sequence[JUnitCase]) -> str:
    """A JUnit file of one suite."""
    failures, skipped = (sum(one.result == result for one in cases) for result in ("failed", "skipped"))
    head = f'<testsuite name={_attribute(suite)} tests="{len(cases)}" failures="{failures}" errors="0"'
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'{head} skipped="{skipped}" time="{sum(one.seconds for one in cases):.3f}">',
        *(line for one in cases for line in _lines(one)),
        "</testsuite>",
    ]
    return "\n".join([*lines, ""])


def _lines(case: JUnitCase) -> Iterator[str]:
    yield (
        f'  <testcase classname={_attribute(case.classname)} name={_attribute(case.name)} time="{case.seconds:.3f}">'
    )
    if case.result == "failed":
        summary = _attribute(case.told.partition("\n")[0])
        yield f"    <failure message={summary}>{escape(_clean(case.told))}</failure>"
    elif case.result == "skipped":
        yield f"    <skipped message={_attribute(case.told)}/>"
    elif case.told:
        yield f"    <system-out>{escape(_clean(case.told))}</system-out>"
    yield "  </testcase>"


def _attribute(text: str) -> str:
    return quoteattr(_clean(text)).replace("\n", "&#10;")


def _clean(text: str) -> str:
    """Text without the control characters that XML cannot hold."""
    return "".join(one if one in "\t\n" or one >= " " else "\ufffd" for one in text)
