"""Settings of `lab soak`, most of them options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from lmtool.core.errors import UsageError
from lmtool.serving.model_names import parse_bytes
from lmtool.settings.option import option

Scenario: TypeAlias = Literal["mixed", "crowd", "idle", "slow-reader"]
PARTS = ("churn", "faults", "slow", "hostile")
"""Parts of the mixed load."""
LOAD = "Load"
BARS = "Bars"
SHARES = {"churn": 0.25, "faults": 0.125, "slow": 0.125, "hostile": 0.5}
"""Of the connections, by part."""
GROWTH_MINUTES = 10.0
"""From this duration on growth of memory is judged: a server that has just started still fills its caches."""


@dataclass(frozen=True, slots=True)
class SoakBench:
    """Settings of one run."""

    scenario: Scenario = option(
        "mixed",
        "mixed: all parts at once; crowd: connections with two streams each; idle: connections that do nothing; "
        "slow-reader: one reader at a byte a second among fast ones.",
        LOAD,
    )
    minutes: float = option(1.0, "How long the mixed load, or idling, lasts.", LOAD, metavar="N", minimum=0.01)
    only: tuple[str, ...] = option((), f"Only this part: {', '.join(PARTS)} (repeatable).", LOAD, metavar="PART")
    connections: int | None = option(
        None,
        "Connections at once.",
        LOAD,
        metavar="N",
        minimum=1,
        maximum=60000,
        shown_default="100; 1000 of crowd and idle",
    )
    frames: int | None = option(
        None, "End after so many hostile frames and requests.", LOAD, metavar="N", minimum=1, shown_default="no limit"
    )
    good: int = option(16, "Seeded streams that must not change.", LOAD, metavar="N", minimum=1, maximum=1000)
    output_len: int = option(64, "Tokens of each of them.", LOAD, metavar="N", minimum=2)
    rounds: int = option(5, "Rounds of the slow reader.", LOAD, metavar="N", minimum=2)
    seed: int = option(0, "Of everything that is drawn.", LOAD, metavar="N")
    timeout: float = option(60.0, "Longest wait for an answer.", BARS, metavar="SECONDS", minimum=1)
    max_growth: float = option(
        0.05,
        f"Most growth of memory from 10 % of the time to its end; from {GROWTH_MINUTES:g} minutes on.",
        BARS,
        metavar="SHARE",
        minimum=0,
    )
    max_rss: str | None = option(
        None, "Most memory of the server, such as 500MB.", BARS, metavar="BYTES", shown_default="no limit"
    )

    def check(self) -> None:
        """Raise `UsageError` for what contradicts itself."""
        if self.max_rss is not None:
            parse_bytes(self.max_rss, "--max-rss")
        for part in self.only:
            if part not in PARTS:
                raise UsageError(f"--only {part!r} is no part of the load", f"known: {', '.join(PARTS)}")
        if self.scenario != "mixed" and self.only:
            raise UsageError("--only chooses parts of the mixed load", f"leave it out of --scenario {self.scenario}")
        if self.frames is not None and "hostile" not in self.parts:
            raise UsageError("--frames counts hostile frames, and there are none", "add  --only hostile")

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the mixed load."""
        return tuple(part for part in PARTS if not self.only or part in self.only)

    @property
    def places(self) -> dict[str, int]:
        """Connections of each part."""
        whole = sum(SHARES[part] for part in self.parts)
        total = self.connections or 100
        return {part: max(1, round(total * SHARES[part] / whole)) for part in self.parts}

    @property
    def seconds(self) -> float:
        """The duration."""
        return 60 * self.minutes
