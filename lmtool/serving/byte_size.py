"""Reads a size in bytes as people write it: `4GB`, `512MiB`, `1000000`."""

from __future__ import annotations

import re

from lmtool.core.errors import UsageError

_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_MOST = 1 << 60


def parse_bytes(text: str, option: str) -> int:
    """The number of bytes: `kB`, `MB`, `GB`, `TB` are powers of 1000, `KiB`, `MiB`, `GiB`, `TiB` of 1024.

    option: named in the `UsageError` that is raised for anything else, and for less than one byte.
    """
    match = _FORM.fullmatch(text.strip())
    if match is not None:
        base = 1024 if match[3] else 1000
        size = int(float(match[1]) * base ** _POWERS[(match[2] or "").lower()]) if len(match[1]) <= 20 else 0
        if 1 <= size <= _MOST:
            return size
    raise UsageError(f"{option} is {text!r:.60}; expected a size in bytes", "such as 4GB, 512MiB or 1000000000")
