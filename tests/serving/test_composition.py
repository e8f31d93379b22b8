"""What is plugged into what: names, tokenizers, missing packages."""

from __future__ import annotations

import gc
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool.core.errors import FileError, ModelLoadError, ResourceError, UnknownModelError, UsageError
from lmtool.core.interfaces import tokenizer_of
from lmtool.core.streams import stream
from lmtool.core.types import ChatMessage, ChatPrompt, GenerateRequest
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.tiny.path import EMBEDDED_NAME, MODEL_DIR
from lmtool.serving import composition as wiring
from lmtool.serving.composition import Loader, models_of, need_serve_packages
from lmtool.serving.config import ModelsConfig, ServiceConfig
from lmtool.serving.model_names import SMALL_BYTES, served, threads_for
from tests.inference.engine.shelf import until

if TYPE_CHECKING:
    from lmtool.core.interfaces import Catalogue
    from lmtool.core.types import LoadProgress

STORIES = Path(__file__).parent.parent / "data/stories260K"


def test_a_folder_shows_its_last_part_and_answers_to_its_path() -> None:
    """A path is nobody's business, but who knows it may ask for it."""
    model = served(f"{STORIES}/")
    assert model.names == ("stories260K", f"{STORIES}/", str(STORIES))


def test_served_model_names_come_first() -> None:
    """The first name given is the name shown; the others work as well."""
    assert served(str(STORIES), ("mine", "yours")).names[:3] == ("mine", "yours", "stories260K")
    assert ModelsConfig(str(STORIES), ("mine",)).main == "mine"


@pytest.mark.parametrize("name", [b"m\xff", b"\xed\xa0\x80", b"a\xff/m", b"m\xff.gguf"])
def test_a_name_that_is_not_utf_8(name: bytes, tmp_path: Path) -> None:
    """It is refused at once: neither the libraries that read models nor the protocols can say it."""
    folder = tmp_path / os.fsdecode(name)
    folder.parent.mkdir(exist_ok=True)
    folder.touch() if folder.suffix == ".gguf" else folder.mkdir()
    with pytest.raises(UsageError, match="is not valid UTF-8"):
        served(str(folder))
    with pytest.raises(UsageError, match="is not valid UTF-8"):
        served(None, (os.fsdecode(name),))


def test_a_gguf_file_shows_its_name(tmp_path: Path) -> None:
    """Without its folder and its ending."""
    file = tmp_path / "small.gguf"
    file.touch()
    assert served(str(file)).names == ("small", str(file))


def test_a_hub_name_is_its_own_name() -> None:
    """What is not a folder is a name on the hub."""
    assert served("org/model").names == ("org/model",)


@pytest.mark.parametrize("model", [None, EMBEDDED_NAME])
def test_no_model_is_the_embedded_one(model: str | None) -> None:
    """It has a name for clients, and can be asked for by it."""
    assert served(model).source == str(MODEL_DIR)
    assert served(model).names == (EMBEDDED_NAME,)


@pytest.mark.parametrize("model", ["./no-such", "/no/such/folder", "~/no-such", "a/b/c", __file__, ""])
def test_what_can_be_neither_folder_nor_name_is_refused_at_once(model: str) -> None:
    """Before anything heavy is loaded, with the value and what was expected."""
    with pytest.raises(ModelLoadError) as refused:
        served(model)
    assert repr(model) in refused.value.message
    assert refused.value.hints


async def test_other_models_are_loaded_only_under_auto_or_an_allow_list() -> None:
    """A stranger who names a model must not make the server download it."""
    plain = models_of(ServiceConfig(ModelsConfig()), Loader(EngineConfig()))
    with pytest.raises(UnknownModelError, match="'evil/model' is not served here"):
        await plain.info("evil/model")
    allowing = models_of(ServiceConfig(ModelsConfig(allow_model=(str(STORIES),))), Loader(EngineConfig()))
    with pytest.raises(UnknownModelError):
        await allowing.info("evil/model")
    assert (await allowing.info("stories260K")).parameters == 260_032
    await allowing.close()
    await plain.close()


def test_each_model_is_served_once(tmp_path: Path) -> None:
    """The same model named twice is one; two with one name could not be told apart, and are refused."""
    (entry,) = ModelsConfig(allow_model=("lmtool-tiny",)).entries()
    assert entry.name == "lmtool-tiny"
    other = tmp_path / STORIES.name
    other.mkdir()
    models = ModelsConfig(str(STORIES), allow_model=(str(STORIES), str(other)))
    with pytest.raises(UsageError, match="two models have the name 'stories260K'"):
        models.check()


def test_several_models() -> None:
    """Those that are named are loaded at the start, each once; what is allowed beside them is loaded on demand."""
    models = ModelsConfig(
        str(STORIES), allow_model=("org/other",), extra_models=("lmtool-tiny", str(STORIES), "org/model")
    )
    models.check()
    assert models.main == "stories260K"
    assert models.initial == ["stories260K", "lmtool-tiny", "org/model"]
    assert [(entry.name, entry.phase) for entry in models.entries()] == [
        ("stories260K", "loading"),
        ("lmtool-tiny", "loading"),
        ("org/model", "loading"),
        ("org/other", "unloaded"),
    ]


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (ModelsConfig("auto", extra_models=("org/model",)), "auto serves any model that clients name"),
        (ModelsConfig("org/model", extra_models=("auto",)), "auto serves any model that clients name"),
        (ModelsConfig("a", ("name",), extra_models=("b",)), "--served-model-name names one model, but 2"),
    ],
)
def test_several_models_that_contradict_an_option(models: ModelsConfig, message: str) -> None:
    """They are refused before anything is opened."""
    with pytest.raises(UsageError, match=message) as refused:
        models.check()
    assert refused.value.hints


def test_aliases_and_pins() -> None:
    """An alias is one more name that clients are shown; a pinned model is loaded at the start."""
    models = ModelsConfig(
        str(STORIES), allow_model=("org/a", "org/b"), alias=("small=stories260K", "s=small"), pin=("org/b", "s")
    )
    models.check()
    stories, first, second = models.served()
    assert stories.names[0] == "stories260K"
    assert stories.names[-2:] == stories.aliases == ("small", "s")
    assert [model.pinned for model in (stories, first, second)] == [True, False, True]
    assert models.initial == ["stories260K", "org/b"]
    assert [(entry.name, entry.phase, entry.pinned) for entry in models.entries()] == [
        ("stories260K", "loading", True),
        ("org/a", "unloaded", False),
        ("org/b", "loading", True),
    ]
    under_auto = ModelsConfig("auto", allow_model=("org/a",), pin=("org/a",), alias=("a=org/a",))
    under_auto.check()
    assert (under_auto.main, under_auto.initial) == (None, ["org/a"])


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (ModelsConfig("a", alias=("x=b",)), "--alias x=b names a model that is not served"),
        (ModelsConfig("a", alias=("x",)), "--alias 'x' is not NAME=MODEL"),
        (ModelsConfig("a", alias=("=a",)), "--alias '=a' is not NAME=MODEL"),
        (ModelsConfig("a", alias=("b=a",), extra_models=("b",)), "two models have the name 'b'"),
        (ModelsConfig("a", pin=("b",)), "--pin b names a model that is not served"),
        (ModelsConfig("auto", pin=("b",)), "--pin b names a model that is not served"),
        (ModelsConfig("a", pin=("a", "b"), max_loaded=1, extra_models=("b",)), "--pin keeps 2 models in memory"),
        (ModelsConfig("a", pin=("a",), max_loaded=1, allow_model=("b",)), "others could never be loaded"),
        (ModelsConfig("auto", pin=("b",), max_loaded=1, allow_model=("b",)), "others could never be loaded"),
        (ModelsConfig("a", memory="much"), "--memory is 'much'"),
        (ModelsConfig("a", allow_download=("*",)), "--allow-download applies to names that clients send to auto"),
    ],
)
def test_options_of_models_that_contradict_each_other(models: ModelsConfig, message: str) -> None:
    """They are refused before anything is opened, with what to do."""
    with pytest.raises(UsageError, match=message) as refused:
        models.check()
    assert refused.value.hints
    assert refused.value.exit_code == 2


def _phases(manager: Catalogue) -> list[str]:
    return [entry.phase for entry in manager.models()]


async def test_memory_is_a_budget() -> None:
    """What `--memory` says is what the manager keeps to: of two models that do not fit together one is in memory."""
    config = ModelsConfig(str(STORIES), allow_model=("lmtool-tiny",), memory="12MB")
    manager = models_of(ServiceConfig(config), Loader(EngineConfig(threads=1)))
    await manager.info("stories260K")
    assert _phases(manager) == ["ready", "unloaded"]
    await manager.info("lmtool-tiny")
    await until(lambda: _phases(manager) == ["unloaded", "ready"])
    assert [entry.size_bytes for entry in manager.models()] == [1_044_992, 5_906_904]
    await manager.close()


def test_a_very_small_model_gets_one_thread(tmp_path: Path) -> None:
    """Others get what torch chooses: large ones, and those whose size is not known yet."""
    assert threads_for(None) == 1
    assert threads_for(str(STORIES)) == 1
    assert threads_for(str(STORIES), None) == 1
    assert threads_for(str(STORIES), "org/model") is None
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(SMALL_BYTES)
    assert threads_for(str(tmp_path)) is None
    assert threads_for("org/model") is None
    assert threads_for("auto") is None


def test_the_main_models_tokenizer_can_be_another_one(tmp_path: Path) -> None:
    """`--tokenizer` and `--chat-template` are of the main model; a file that is not there is told before the load."""
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[0].content }}")
    models = ModelsConfig(str(STORIES), tokenizer=str(MODEL_DIR), chat_template=str(template))
    models.check()
    assert models.tokenizer_source(str(STORIES)) == (str(MODEL_DIR), "{{ messages[0].content }}")
    assert models.tokenizer_source("other") == ("other", None)
    named = ModelsConfig(model=str(STORIES), tokenizer=EMBEDDED_NAME)
    assert named.tokenizer_source(str(STORIES)) == (str(MODEL_DIR), None)
    with pytest.raises(FileError, match="cannot read the chat template"):
        ModelsConfig(chat_template="nowhere").check()
    with pytest.raises(UsageError, match="unknown"):
        ModelsConfig(tool_call_parser="nobodys").check()
    loaded = Loader(EngineConfig(threads=1), models=ModelsConfig(chat_template=str(template)))
    model = loaded.load(served(None).source, lambda _: None)
    model.close()
    tokenizer = tokenizer_of(model)
    assert tokenizer is not None
    chat = ChatPrompt((ChatMessage("user", "Hi"),))
    assert tokenizer.encode_prompt(chat) == tokenizer.encode("Hi", special=False)


def test_under_auto_there_is_no_main_model() -> None:
    """Nothing is loaded until a client names it."""
    assert ModelsConfig("auto").main is None


def test_a_missing_package_names_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's installation that is asked to serve says what to install, exit status 8."""
    need_serve_packages()
    monkeypatch.setattr(wiring, "SERVE_PACKAGES", ("torch", "no_such_package_anywhere"))
    with pytest.raises(ResourceError, match="serving a model needs no_such_package_anywhere") as refused:
        need_serve_packages()
    assert refused.value.hints == ("install it:  pip install 'lmtool[serve]'",)


async def test_a_model_without_tokenizer_takes_ids(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """LMTP needs ids only: such a model is served, says so, and refuses text by name.

    Its load tells how far it is, and leaves the garbage collector as it was.
    """
    folder = tmp_path / "bare"
    shutil.copytree(STORIES, folder, ignore=shutil.ignore_patterns("tokenizer*"))
    told: list[LoadProgress] = []
    loader = Loader(EngineConfig(max_streams=2))
    with caplog.at_level(logging.WARNING, "lmtool"):
        model = loader.load(str(folder), told.append)
    try:
        assert "token ids only" in caplog.text
        assert {progress.phase for progress in told} == {"loading"}
        assert gc.isenabled()
        assert (await model.info()).tokenizer is None
        outputs = [output async for output in stream(model, GenerateRequest("a", (1, 403, 407, 261, 378)))]
        assert outputs[0].token == 432
        (refused,) = [output async for output in stream(model, GenerateRequest("b", "text"))]
        assert refused.error is not None
        assert loader.streams() == (0, 0)
    finally:
        model.close()
