"""`lmtool tour`: where it cannot run, and as somebody types it into a real terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lmtool.cli.common_options import Common
from lmtool.cli.tour import tour
from lmtool.core.errors import ResourceError
from lmtool.serving import composition
from tests.cli.terminal import terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run


def test_no_terminal(lmtool: Run) -> None:
    """In a pipe it says what it needs, with 2."""
    done = lmtool("tour")
    assert done.returncode == 2
    assert "error: lmtool tour needs a terminal" in done.stderr
    assert "lmtool docs inspector" in done.stderr


async def test_no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the packages of the extra `serve` it prints the install line, with 8."""
    monkeypatch.setattr(composition, "is_installed", lambda name: name != "torch")
    with pytest.raises(ResourceError) as refused:
        await tour(Common(), restart=False, theme=None, ascii=False)
    assert refused.value.exit_code == 8
    assert any("pip install" in hint for hint in refused.value.hints)


def test_in_a_terminal(tmp_path: Path) -> None:
    """On the included model in this process: steps by their keys; Ctrl-C leaves, and the place is kept."""
    own = {"XDG_DATA_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "NO_COLOR": ""}
    with terminal("tour", columns=80, rows=24, **own) as screen:
        screen.until("Press d")
        screen.press("d")
        screen.until("Tour 2 of 9: Pause")
        screen.press(" ")
        screen.until("PAUSED")
        screen.until("Tour 3 of 9: Go on")
        screen.press(" ")
        screen.until("Tour 4 of 9: Jump")
        screen.press("\x03")
        assert screen.end() == 0
        assert "left at step 4 of 9 (Jump); resume:  lmtool tour" in screen.text
    assert (tmp_path / "lmtool/tour").read_text() == "jump\n"
