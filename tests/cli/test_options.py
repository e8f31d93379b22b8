"""The wrapper around every command: shared options, environment, exit statuses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from lmtool.cli.app import root
from lmtool.cli.invocation import DEFAULT_ENDPOINT, Common
from lmtool.cli.options import with_common
from lmtool.errors import ConnectError, LmtoolError, RequestError, ResourceError

runner = CliRunner()
seen: list[tuple[Common, object]] = []


def application(function: object) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(root)
    app.command("probe")(with_common(function))  # type: ignore[arg-type]
    return app


def probe(common: Common, word: Annotated[str, typer.Option(help="A word.")] = "none") -> None:
    """Remember what arrived."""
    seen.append((common, word))


async def slow_probe(common: Common) -> None:
    """Remember, from a coroutine."""
    seen.append((common, "async"))


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    seen.clear()
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.parametrize("words", [["-e", "ws://a/", "-q", "probe"], ["probe", "-q", "-e", "ws://a/"]])
def test_shared_options_work_before_and_after_the_command(words: list[str]) -> None:
    """Global options work on both sides of the command's name."""
    assert runner.invoke(application(probe), words).exit_code == 0
    assert seen == [(Common(endpoint="ws://a/", quiet=True), "none")]


def test_command_knows_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value from the environment is a value, but nobody typed it for this command."""
    monkeypatch.setenv("LMTOOL_WORD", "set")
    runner.invoke(application(probe), ["probe"])
    runner.invoke(application(probe), ["probe", "--word", "said"])
    assert [(common.typed, word) for common, word in seen] == [(frozenset(), "set"), (frozenset({"word"}), "said")]


def test_after_beats_before() -> None:
    """Said twice, the nearer one counts."""
    runner.invoke(application(probe), ["-e", "ws://a/", "probe", "-e", "ws://b/"])
    assert seen[0][0].url == "ws://b/"


def test_default_endpoint() -> None:
    """Nothing said: the default address of `lmtool serve`."""
    assert Common().url == DEFAULT_ENDPOINT


def test_every_option_has_its_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """LMTOOL_<OPTION> sets an option; the command line beats it."""
    monkeypatch.setenv("LMTOOL_WORD", "env")
    app = application(probe)
    runner.invoke(app, ["probe"])
    runner.invoke(app, ["probe", "--word", "option"])
    assert [word for _, word in seen] == ["env", "option"]


def test_settings_file_is_weaker_than_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Option > environment > project file > default."""
    (tmp_path / "lmtool.toml").write_text("[probe]\nword = 'file'\n")
    app = application(probe)
    runner.invoke(app, ["probe"])
    monkeypatch.setenv("LMTOOL_WORD", "env")
    runner.invoke(app, ["probe"])
    assert [word for _, word in seen] == ["file", "env"]


def test_a_coroutine_runs_to_its_end() -> None:
    """An async command is awaited."""
    assert runner.invoke(application(slow_probe), ["probe"]).exit_code == 0
    assert seen[0][1] == "async"


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (ConnectError("x"), 3),
        (RequestError("x"), 4),
        (ResourceError("x"), 8),
        (LmtoolError("x"), 1),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError(), 70),
    ],
)
def test_exit_status(raised: BaseException, status: int) -> None:
    """Each kind of end has its documented exit status."""

    def failing(common: Common) -> None:
        raise raised

    assert runner.invoke(application(failing), ["probe"]).exit_code == status
