"""Seams of answers, as they stand in JSON."""

from __future__ import annotations

from dataclasses import asdict

from lmtool.core.seam import Seam


def test_what_is_written_is_read() -> None:
    """And nothing else is a seam."""
    seam = Seam(10, "main", "backup")
    value = asdict(seam)
    assert value == {"at": 10, "before": "main", "after": "backup"}
    assert Seam.read(value | {"more": 1}) == seam
    for wrong in (None, [], {}, value | {"at": -1}, value | {"at": "10"}, value | {"after": None}):
        assert Seam.read(wrong) is None
