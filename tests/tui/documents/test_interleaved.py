"""Tokens in order of arrival."""

from __future__ import annotations

from lmtool.tui.documents.interleaved import InterleavedDocument
from lmtool.tui.glyphs import UNICODE
from lmtool.tui.view import View
from tests.tui.documents.watched import rows


def test_rows(view: View) -> None:
    """Time once a frame, stream, figure of the heat, token; the cursor's token has a sign."""
    shown = rows(InterleavedDocument(view, UNICODE), 60)
    assert shown[0] == "    0.400 1/1        .905 ▏ the"
    assert shown[1] == "          1/2        .607 ▏ the"
    assert shown[2] == "    0.500 1/1        .007 ▏ fox"
    view.choose_token(2)
    assert "▸ fox" in rows(InterleavedDocument(view, UNICODE), 60)[2]


def test_narrow(view: View) -> None:
    """Without room there is no figure."""
    assert rows(InterleavedDocument(view, UNICODE), 40)[0] == "    0.400 1/1     ▏ the"


def test_colours(view: View) -> None:
    """A surprising token has a later step of the heat than an expected one."""
    document = InterleavedDocument(view, UNICODE)
    styles = [next(run.style for run in reversed(document.line(y, 60)) if "heat" in run.style) for y in (0, 2)]
    assert styles[0].split()[0] < styles[1].split()[0]
