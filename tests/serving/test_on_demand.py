"""What clients of `serve auto` may name, and what the hub's cache has."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lmtool.core.errors import ModelLoadError, UnknownModelError
from lmtool.inference.engine.config import EngineConfig
from lmtool.net.access.keyed_models import keyed
from lmtool.net.access.keys import Key, digest_of
from lmtool.serving.composition import Loader, models_of
from lmtool.serving.config import ModelsConfig, ServiceConfig
from lmtool.serving.hub_cache import cached_snapshot, is_hub_name, weight_files
from lmtool.serving.model_names import OnDemand, weight_bytes
from tests.net.access.test_keyed_models import asking

STORIES = Path(__file__).parent.parent / "data/stories260K"


@pytest.fixture
def downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with the model tiny/stories, at `main` and at the tag `old`, and one without weights."""
    hub = tmp_path / "cache"
    repository = hub / "models--tiny--stories"
    for commit in ("abc", "def"):
        shutil.copytree(STORIES, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("abc\n")
    (repository / "refs/old").write_text("def")
    (hub / "models--only--config/snapshots/a").mkdir(parents=True)
    (hub / "models--only--config/refs").mkdir()
    (hub / "models--only--config/refs/main").write_text("a")
    (hub / "models--only--config/snapshots/a/config.json").write_text("{}")
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    return hub


@pytest.mark.usefixtures("downloaded")
def test_what_is_in_the_cache() -> None:
    """It is loaded from its folder there, at the server's revision, so that nothing is asked of the hub."""
    model = OnDemand()("tiny/stories")
    assert Path(model.source).name == "abc"
    assert model.names == ("tiny/stories",)
    assert model.size_bytes == (STORIES / "model.safetensors").stat().st_size
    assert Path(OnDemand((), "old")("tiny/stories").source).name == "def"
    assert Path(OnDemand((), "def")("tiny/stories").source).name == "def"
    with pytest.raises(UnknownModelError):
        OnDemand((), "other")("tiny/stories")


@pytest.mark.usefixtures("downloaded")
@pytest.mark.parametrize(
    ("name", "patterns", "allowed"),
    [
        ("Qwen/Qwen3-0.6B", ("Qwen/*",), True),
        ("gpt2", ("gpt2", "Qwen/*"), True),
        ("anything/at-all", ("*",), True),
        ("Qwen/Qwen3-0.6B", (), False),
        ("Qwen/Qwen3-0.6B", ("qwen/*",), False),
        ("QwenX/model", ("Qwen/*",), False),
        ("only/config", (), False),
    ],
)
def test_downloads(name: str, patterns: tuple[str, ...], *, allowed: bool) -> None:
    """What is not in the cache is downloaded only where a pattern of the operator's matches the whole name."""
    if allowed:
        assert OnDemand(patterns)(name).source == f"hub:{name}"
        return
    with pytest.raises(UnknownModelError, match="is not served here") as refused:
        OnDemand(patterns)(name)
    assert "--allow-download" in refused.value.hints[0]


@pytest.mark.parametrize(
    "name",
    [str(STORIES), "../stories260K", ".", "~", "a/b/c", "a--b", "a/..", "x\n", "/etc/passwd", "/etc/no-such-file"],
)
def test_folders(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No client makes the server read a folder by naming it, or learns that there is one, whatever is allowed."""
    monkeypatch.chdir(STORIES.parents[2])
    with pytest.raises(UnknownModelError, match="is not served here") as refused:
        OnDemand(("*",))(name)
    with pytest.raises(UnknownModelError) as other:
        OnDemand()("no/such-model")
    assert refused.value.sentence == other.value.sentence.replace(
        "no/such-model", name.encode("unicode_escape").decode()
    )
    assert "--allow-model" in refused.value.hints[0]


@pytest.mark.usefixtures("downloaded")
async def test_names_that_are_also_files_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is found and refused by its hub name alone: what the working folder holds changes no answer."""
    told = []
    for folder in (tmp_path / "empty", tmp_path / "full"):
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        if folder.name == "full":
            shutil.copytree(STORIES, folder / "tiny/stories")
            shutil.copytree(STORIES, folder / "secret")
        config = ModelsConfig("auto", allow_download=("*",))
        manager = models_of(ServiceConfig(config), Loader(EngineConfig(threads=1), models=config))
        assert "snapshots" in OnDemand()("tiny/stories").source
        for name in ("secret", "secret/model.safetensors", "other"):
            with pytest.raises(ModelLoadError) as refused:
                await manager.info(name)
            told.append(refused.value.sentence)
        await manager.close()
    assert told[:3] == told[3:]
    assert str(tmp_path) not in "".join(told)


@pytest.mark.usefixtures("downloaded")
async def test_keys_without_admin() -> None:
    """They use what is served by name or in memory, and load nothing else, before and after `admin` has."""
    config = ModelsConfig("auto", allow_model=(str(STORIES),), allow_download=("*",))
    manager = models_of(ServiceConfig(config), Loader(EngineConfig(threads=1), models=config))
    models = keyed(manager)
    tenant, boss = (Key(name, digest_of(name), admin=name == "boss") for name in ("tenant", "boss"))
    with asking(tenant):
        for name in ("tiny/stories", "lmtool-tiny", "any/other"):
            with pytest.raises(UnknownModelError, match=f"{name}' is not"):
                await models.info(name)
        assert (await models.info("stories260K")).parameters == 260_032
    with asking(boss):
        await models.load("tiny/stories")
    with asking(tenant):
        assert (await models.info("tiny/stories")).parameters == 260_032
    with asking(boss):
        await models.unload("tiny/stories")
    with asking(tenant), pytest.raises(UnknownModelError):
        await models.info("tiny/stories")
    await manager.close()


def test_the_embedded_model() -> None:
    """It is always there."""
    assert OnDemand()("lmtool-tiny").names == ("lmtool-tiny",)


@pytest.mark.usefixtures("downloaded")
async def test_served_under_its_hub_name() -> None:
    """A model from the cache is what the client has named, in its description too; folders are by `allow_model`."""
    config = ModelsConfig("auto", allow_model=(str(STORIES),))
    manager = models_of(ServiceConfig(config), Loader(EngineConfig(threads=1), models=config))
    info = await manager.info("tiny/stories")
    assert (info.model, info.parameters) == ("tiny/stories", 260_032)
    assert info.tokenizer is not None
    assert info.tokenizer.name == "tiny/stories"
    assert "abc" not in info.constructor
    assert [(entry.name, entry.phase) for entry in manager.models()] == [
        ("stories260K", "unloaded"),
        ("tiny/stories", "ready"),
    ]
    assert (await manager.info("stories260K")).parameters == 260_032
    with pytest.raises(UnknownModelError):
        await manager.info("tiny/other")
    await manager.close()


async def test_code_of_a_model_is_not_run(downloaded: Path) -> None:
    """One that brings its own Python code is refused without the option, and nothing of it runs."""
    snapshot, witness = downloaded / "models--tiny--stories/snapshots/abc", downloaded / "ran"
    config = (snapshot / "config.json").read_text()
    code = '"auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}, "model_type": "own",'
    (snapshot / "config.json").write_text(
        config.replace('"model_type": "llama"', '"model_type": "own"').replace("{", "{" + code, 1)
    )
    (snapshot / "own.py").write_text(f"open({str(witness)!r}, 'w').close()\n")
    manager = models_of(ServiceConfig(ModelsConfig("auto")), Loader(EngineConfig(threads=1)))
    with pytest.raises(ModelLoadError, match="its own Python code"):
        await manager.info("tiny/stories")
    assert not witness.exists()
    await manager.close()


@pytest.mark.usefixtures("downloaded")
def test_sizes(tmp_path: Path) -> None:
    """Of a folder, a file, a model in the cache; not of what is not on this machine."""
    size = (STORIES / "model.safetensors").stat().st_size
    assert weight_bytes(str(STORIES)) == weight_bytes("tiny/stories") == size
    (tmp_path / "m.gguf").write_bytes(b"12345")
    assert weight_bytes(str(tmp_path / "m.gguf")) == 5
    assert weight_bytes("org/elsewhere") is None
    assert weight_bytes(str(tmp_path / "cache")) is None
    for name in ("a.bin", "a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(b"1")
    assert sorted(file.name for file in weight_files(tmp_path)) == ["a.safetensors", "b.safetensors"]


def test_names() -> None:
    """What the hub allows: letters, digits, `-`, `_`, `.`; one `/` at most, and no `--` or `..`."""
    assert all(map(is_hub_name, ("gpt2", "Qwen/Qwen3-0.6B", "a_b/c.d")))
    assert not any(map(is_hub_name, ("", "/a", "a/", "a/b/c", "a..b", "a--b", ".a", "a b", "ä", "a\\b")))
    assert cached_snapshot("../../" + os.sep) is None
