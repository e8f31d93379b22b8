"""The specification of LMTP, as text."""

from __future__ import annotations

from pathlib import Path

import lmtool.protocol.lmtp

SPEC = (Path(lmtool.protocol.lmtp.__path__[0]) / "SPEC.md").read_text()


def section(start: str) -> str:
    """A rule with all that stands under it, up to the next rule or heading."""
    rest = SPEC[SPEC.index(start) + len(start) :]
    ends = [rest.find(sign) for sign in ("\n**", "\n## ")]
    return rest[: min(end for end in ends if end >= 0)]
