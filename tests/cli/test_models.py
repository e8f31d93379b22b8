"""`lmtool models`: served, embedded, downloaded."""

from __future__ import annotations

import json
import shutil
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from lmtool.cli.models import AvailableModel, ago, downloaded_models, model_table
from lmtool.inference.text.files import hub_cache
from tests.cli.terminal import terminal

if TYPE_CHECKING:
    from tests.conftest import Run, StartServer

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


def test_loading_and_unloading(lmtool: Run, start_server: StartServer, tmp_path: Path) -> None:
    """The server's models once it is done, as lines in a pipe and as JSON; with both options it unloads first."""
    broken = tmp_path / "broken"
    shutil.copytree(STORIES, broken)
    (broken / "model.safetensors").write_bytes(b"")
    words = ("--allow-model", str(STORIES), "--allow-model", str(broken), "--alias", "small=stories260K", "--pin")
    with start_server("lmtool-tiny", *words, "lmtool-tiny", "--max-loaded", "2") as server:
        server.expect("ready in")
        listed = lmtool("models", "-e", server.url).stdout
        assert "served    stories260K" in listed
        assert "unloaded; also small" in listed
        assert "ready; used " in listed
        loaded = lmtool("models", "--load", "small", "-e", server.url)
        assert loaded.returncode == 0
        first, second, third = loaded.stdout.splitlines()
        assert first.split()[:5] == ["served", "lmtool-tiny", "LlamaForCausalLM", "5.9", "MB"]
        assert first.endswith("; pinned")
        assert second.split()[:5] == ["served", "stories260K", "LlamaForCausalLM", "1.0", "MB"]
        assert "ready; used 0 s ago; also small" in second
        assert third.split()[:2] == ["served", "broken"]
        assert server.expect("MODELS load small")
        failed = lmtool("models", "--load", "broken", "-e", server.url)
        assert failed.returncode == 4
        assert "is empty" in failed.stderr
        swapped = lmtool("models", "--unload", "stories260K", "--load", "lmtool-tiny", "--json", "-e", server.url)
        entries = {entry["name"]: entry for entry in json.loads(swapped.stdout)}
        assert {name: entry["phase"] for name, entry in entries.items()} == {
            "lmtool-tiny": "ready",
            "stories260K": "unloaded",
            "broken": "failed",
        }
        assert "is empty" in entries["broken"]["error"]
        assert str(tmp_path) not in entries["broken"]["error"]
        for option, name, message in (
            ("--load", "other", "model 'other' is not served here"),
            ("--unload", "other", "model 'other' is not in memory here"),
            ("--unload", "lmtool-tiny", "lmtool-tiny is pinned"),
        ):
            refused = lmtool("models", option, name, "-e", server.url)
            assert (refused.returncode, refused.stdout) == (4, "")
            assert refused.stderr.startswith(f"error: {message}")


def test_options_that_contradict(lmtool: Run) -> None:
    """One model cannot be loaded and unloaded; without a server neither is possible."""
    refused = lmtool("models", "--load", "a", "--unload", "a")
    assert refused.returncode == 2
    assert "--load a and --unload a contradict each other" in refused.stderr
    assert lmtool("models", "--load", "a", "-e", NO_SERVER).returncode == 3


MANY = [
    AvailableModel(
        "served", "stories260K", "LlamaForCausalLM", 1_044_992, phase="ready", context_length=512, idle_seconds=7.3
    ),
    AvailableModel("served", "an-organisation/with-a-model-of-a-very-long-name-7B-Instruct", phase="loading"),
    AvailableModel("served", "broken", phase="failed", error="the weights are cut off; download it again", pinned=True),
    AvailableModel("served", "\x1b[31mred", phase="unloaded", aliases=("r",)),
]


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_a_table_fits_into_the_terminal(columns: int) -> None:
    """Nothing is cut: names and reasons are folded; what steers a terminal is made visible."""
    console = Console(width=columns, record=True, file=StringIO())
    console.print(model_table(MANY, "served at ws://127.0.0.1:8080/", columns))
    drawn = console.export_text()
    assert all(len(line.rstrip()) <= columns for line in drawn.splitlines())
    letters = "".join(drawn.split())
    for part in ("ready", "loading", "failed", "unloaded", "1.0MB", "7sago", "servedatws://127.0.0.1:8080/"):
        assert part in letters
    assert ("LlamaForCausalLM" in letters) == (columns >= 80)
    assert "\x1b" not in drawn
    if columns >= 140:
        assert "an-organisation/with-a-model-of-a-very-long-name-7B-Instruct" in drawn
        assert "broken: the weights are cut off; download it again" in drawn


def test_a_table_on_a_narrow_terminal(served: str) -> None:
    """A person sees a table, with headings, that fits."""
    with terminal("models", "-e", served, columns=60) as screen:
        assert screen.end() == 0
    lines = [line.rstrip() for line in screen.text.splitlines()]
    assert f"served at {served}".rstrip("/") in "\n".join(lines)
    assert any(line.split()[:4] == ["name", "state", "size", "used"] for line in lines)
    assert any(line.split()[:2] == ["stories260K", "ready"] for line in lines)
    assert all(len(line) <= 60 for line in lines if not line.startswith("no downloaded"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (172_800, "2 d"), (1e7, "115 d")],
)
def test_how_long_ago(seconds: float, text: str) -> None:
    """In one unit, whole ones."""
    assert ago(seconds) == text
