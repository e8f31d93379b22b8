"""Pictures of the screen."""

from __future__ import annotations

from lmtool.tui.pictures import picture
from tests.tui.scripted import watching


async def test_fonts_of_the_machine_only() -> None:
    """Nothing is fetched from the network, and the font is monospaced."""
    async with watching() as seen:
        svg = picture(seen.app)
    assert "@font-face" not in svg
    assert "cdnjs" not in svg
    assert "DejaVu Sans Mono" in svg
    assert "1/2" in svg
