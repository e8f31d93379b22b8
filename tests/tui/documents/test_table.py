"""Tokens as a table."""

from __future__ import annotations

from lmtool.tui.documents.table import TableDocument
from lmtool.tui.glyphs import UNICODE
from lmtool.tui.view import View
from tests.tui.documents.watched import rows


def test_rows(view: View) -> None:
    """Number, id, token, p, bits, rank and the other alternatives under their headings."""
    view.choose_token(2)
    heading, _, fox, *_ = rows(TableDocument(view, UNICODE), 90)
    assert fox.split()[:8] == ["▸", "1", "8", "'", "fox'", ".007", "7.2", "3"]
    assert "' dog' .368  '.' .050" in fox
    assert heading.index("token") < heading.index("p ") < heading.index("bits") < heading.index("alternatives")
