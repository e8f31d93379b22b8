"""The parts that a regular expression is written in."""

from __future__ import annotations

import re

PARTS = re.compile(
    r"\\(?:[pPxu]\{[^{}]*\}|[pP].|x[0-9A-Fa-f]{2}|u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|"
    r"u[0-9A-Fa-f]{4}|c[A-Za-z]|.)|\[\^?\]?(?:\\.|[^\]\\])*\]|.",
    re.DOTALL,
)
"""An escape, a class, or a character. A class ends where ECMA-262 (section 22.2.1) ends it: it has none inside."""
