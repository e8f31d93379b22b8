"""What a comparison finds: a verdict, where, and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Level: TypeAlias = Literal["shape", "ids", "numbers", "time"]
"""How much must be equal: form and endings; also token ids and finish reasons; also log-probabilities; and, if asked,
how fast it came."""
LEVELS: tuple[Level, ...] = get_args(Level)

Verdict: TypeAlias = Literal["pass", "info", "non-strict", "tie", "fail"]
"""From best to worst. `non-strict`: not as the protocol says, in a way that every client bears; `tie`: another token,
but the two were as good as equally likely."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as expected."""

    verdict: Verdict
    level: Level
    stream: str
    """Connection and stream id, such as `1/3`."""
    position: int | None
    """Number of the token in its stream, from 0; None for what belongs to no token."""
    message: str
    """What was expected and what came."""

    def __str__(self) -> str:
        """Verdict, place and message in one line."""
        place = "" if self.position is None else f" token {self.position}"
        return f"{self.verdict} ({self.level}) stream {self.stream}{place}: {self.message}"


def worst(findings: list[Finding]) -> Verdict:
    """The verdict on the whole."""
    return max((finding.verdict for finding in findings), key=VERDICTS.index, default="pass")
