"""Settings files: which are read, which value wins, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.cli.settings import load, project_file, user_file
from lmtool.core.errors import FileError

OPTIONS = {
    ("chat",): {"endpoint": "endpoint", "max_tokens": "max_tokens"},
    ("trace", "record"): {"endpoint": "endpoint", "redact": "what"},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no settings: an empty home, standing in an empty folder."""
    for name in ("HOME", "XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    (tmp_path / "project" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project" / "deep")
    return tmp_path


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_no_file_means_no_defaults(home: Path) -> None:
    """Without settings files every command keeps its own defaults."""
    assert load().default_map(OPTIONS) == {"chat": {}, "trace": {"record": {}}}


def test_project_file_is_the_nearest_parents(home: Path) -> None:
    """The nearest lmtool.toml upwards counts."""
    file = write(home / "project" / "lmtool.toml", "")
    assert project_file(Path.cwd()) == file


def test_project_file_beats_user_file(home: Path) -> None:
    """Project file > user file, value by value."""
    write(user_file(), "endpoint = 'ws://user/'\n[chat]\nmax_tokens = 1\n")
    write(home / "project" / "lmtool.toml", "[chat]\nmax-tokens = 2\n")
    assert load().default_map(OPTIONS)["chat"] == {"endpoint": "ws://user/", "max_tokens": 2}


def test_top_level_value_holds_for_every_command(home: Path) -> None:
    """A value outside any table reaches each command that has the option; a command's own value is stronger."""
    write(home / "project" / "lmtool.toml", "endpoint = 'a'\n[trace.record]\nendpoint = 'b'\n")
    assert load().default_map(OPTIONS) == {"chat": {"endpoint": "a"}, "trace": {"record": {"endpoint": "b"}}}


def test_an_option_is_named_as_on_the_command_line(home: Path) -> None:
    """Whatever its parameter is called in the program; where it is set can be told."""
    file = write(home / "project" / "lmtool.toml", "[trace.record]\nredact = 'prompt'\n")
    settings = load()
    assert settings.default_map(OPTIONS)["trace"]["record"] == {"what": "prompt"}
    assert settings.origin(("trace", "record"), "redact") == file
    assert settings.origin(("chat",), "max_tokens") is None


def test_explicit_file_replaces_the_others(home: Path) -> None:
    """`--settings FILE` is read alone."""
    write(home / "project" / "lmtool.toml", "[chat]\nmax_tokens = 2\n")
    explicit = write(home / "other.toml", "endpoint = 'x'\n")
    settings = load(str(explicit))
    assert settings.files == (explicit,)
    assert settings.default_map(OPTIONS)["chat"] == {"endpoint": "x"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[chat]\nmax_tokns = 2\n", "chat.max_tokns"),
        ("[chta]\nmax_tokens = 2\n", "chta.max_tokens"),
        ("endpoint = \n", "not valid TOML"),
    ],
)
def test_what_no_command_knows_is_refused(home: Path, text: str, said: str) -> None:
    """A wrong name or a broken file is an input error (exit 7) that names file and place."""
    file = write(home / "project" / "lmtool.toml", text)
    with pytest.raises(FileError) as caught:
        load().default_map(OPTIONS)
    assert said in caught.value.message
    assert str(file) in caught.value.message
    assert caught.value.exit_code == 7


def test_missing_explicit_file_is_refused(home: Path) -> None:
    """A named file that is not there is an error, not an empty one."""
    with pytest.raises(FileError, match="cannot read settings file"):
        load("nowhere.toml")
