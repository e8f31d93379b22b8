"""What every loaded model has in common."""

from __future__ import annotations

import torch

from lmtool.engine.loaded import chunk_tokens, shown_name


def test_shown_name(tmp_path, monkeypatch):
    """A folder shows its last part, whichever way it was written; a hub name shows as it is."""
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    assert shown_name(".") == shown_name(str(tmp_path / "model")) == "model"
    assert shown_name("org/name") == "org/name"


def test_chunks_are_whole_blocks():
    """A prompt is cut at the ends of blocks, on each kind of device."""
    assert [chunk_tokens(torch.device(kind)) % 16 for kind in ("cpu", "cuda")] == [0, 0]
