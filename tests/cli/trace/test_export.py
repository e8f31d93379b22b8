"""`lmtool trace export`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.trace_runner import CONVERSATION, trace


def test_page_and_recording(tmp_path: Path) -> None:
    """Traces become a page or a picture, one an asciicast; a file is not replaced, and a wrong label is named."""
    (tmp_path / "a").write_text(CONVERSATION)
    done = trace("export", tmp_path / "a", tmp_path / "a", "-O", tmp_path / "a.html", "--title", "Both")
    assert done.exit_code == 0
    text = (tmp_path / "a.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "<title>Both</title>" in text
    assert trace("export", tmp_path / "a", "-O", tmp_path / "a.html").exit_code == 7
    assert trace("export", tmp_path / "a", "-O", tmp_path / "a.svg").exit_code == 0
    assert (tmp_path / "a.svg").read_text().startswith("<svg ")
    assert trace("export", tmp_path / "a", "--to", "svg").stdout == (tmp_path / "a.svg").read_text()
    wrong = trace("export", tmp_path / "a", "--stream", "7/7")
    assert wrong.exit_code == 2
    assert "there is no stream 7/7" in wrong.stderr
    cast = trace("export", tmp_path / "a", "--to", "asciicast")
    assert json.loads(cast.stdout.split("\n")[0])["version"] == 2
    assert trace("export", tmp_path / "a", tmp_path / "a", "--to", "asciicast").exit_code == 2
