"""The signs that are drawn."""

from __future__ import annotations

from dataclasses import fields

from rich.cells import cell_len

from lmtool.tui.glyphs import ASCII, TO_ASCII, UNICODE


def test_each_takes_one_column_and_has_a_plain_twin() -> None:
    """Both sets have the same signs of the same width; the plain ones are ASCII."""
    for field in fields(UNICODE):
        fancy, plain = getattr(UNICODE, field.name), getattr(ASCII, field.name)
        assert cell_len(fancy) == len(fancy) == len(plain)
        assert plain.isascii()
    assert all(chr(plain).isascii() for plain in TO_ASCII.values())
