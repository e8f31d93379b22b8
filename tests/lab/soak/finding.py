"""What a scenario of one kind of load needs and finds: figures, each beside the bar by which it is judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import ResourceError, ServerError

if TYPE_CHECKING:
    from tests.lab.soak.connection import Address
    from tests.lab.soak.wires import SoakTarget

SPARE_DESCRIPTORS = 100
"""Of this process, beside those of its connections."""


@dataclass
class Finding:
    """What a scenario has found."""

    title: str
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    """What was measured, its value, and the bar."""
    figures: dict[str, Any] = field(default_factory=dict)
    breaches: list[str] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False

    def judge(self, name: str, value: str, bar: str, *, ok: bool) -> None:
        """Add a row with a bar, and a breach where it is not kept."""
        self.rows.append((name, value, bar))
        if not ok:
            self.breaches.append(f"{name}: {value}; expected {bar}")


def need_lmtp(target: SoakTarget, address: Address, count: int) -> None:
    """Raise `ServerError` without LMTP, `ResourceError` where this process may not open that number of connections."""
    if "LMTP" not in target.wires:
        raise ServerError(f"{address.url} does not speak LMTP, over which this is measured", "try  --scenario mixed")
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ResourceError(f"{count} connections need {needed} descriptors, and this process may have {hard}")
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
