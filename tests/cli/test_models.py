"""`lmtool models`: served, embedded, downloaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool.cli.models import downloaded_models, hub_cache

if TYPE_CHECKING:
    from tests.conftest import Run

STORIES = Path(__file__).parent.parent / "data/stories260K"
NO_SERVER = "127.0.0.1:1"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A hub cache with one model in two revisions, one without weights, and a broken one."""
    hub = tmp_path / "hub/hub"
    good = hub / "models--tiny--stories"
    shutil.copytree(STORIES, good / "snapshots/new")
    shutil.copytree(STORIES, good / "snapshots/old")
    (good / "snapshots/old/config.json").write_text('{"architectures": ["OldForCausalLM"]}')
    (good / "refs").mkdir()
    (good / "refs/main").write_text("new")
    (hub / "models--only--config/snapshots/a").mkdir(parents=True)
    (hub / "models--only--config/snapshots/a/config.json").write_text("{}")
    broken = hub / "models--broken/snapshots/a"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{")
    (broken / "model.safetensors").write_bytes(b"x")
    return hub


def test_the_cache_lists_models_with_weights_in_their_main_revision(cache: Path) -> None:
    """The cache's models are those with weights, in the revision that `main` points to."""
    (model,) = downloaded_models(cache)
    assert (model.name, model.architecture) == ("tiny/stories", "LlamaForCausalLM")
    assert model.size_bytes == (STORIES / "model.safetensors").stat().st_size


def test_the_hub_cache_follows_the_hubs_own_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache folder is the one that the hub's own variables name."""
    assert hub_cache() == tmp_path / "hub/hub"
    monkeypatch.setenv("HF_HUB_CACHE", "/elsewhere")
    assert hub_cache() == Path("/elsewhere")


def test_models_are_served_embedded_or_downloaded(lmtool: Run, cache: Path, served: str) -> None:
    """Served, embedded and downloaded models are listed in this order."""
    listed = lmtool("models", "-e", served)
    assert listed.returncode == 0
    assert "no downloaded models" not in listed.stderr
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert [row[0] for row in rows] == ["served", "embedded", "cache"]
    assert rows[0][1] == "stories260K"
    assert rows[2][1:] == ["tiny/stories", "LlamaForCausalLM", "1.0", "MB"]


def test_models_needs_no_server(lmtool: Run) -> None:
    """Without a server the rest is listed."""
    listed = lmtool("models", "--json", "-e", NO_SERVER)
    assert listed.returncode == 0
    assert f"no downloaded models in {hub_cache()}" in lmtool("models", "-e", NO_SERVER).stderr
    assert "served" not in {model["where"] for model in json.loads(listed.stdout)}
