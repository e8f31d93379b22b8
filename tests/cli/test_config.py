"""`lmtool config`: each value with its origin."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lmtool.cli.app import build

runner = CliRunner()


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_origin_of_each_value(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment, file and default are told apart."""
    (project / "lmtool.toml").write_text("[chat]\nverbose = 1\n")
    monkeypatch.setenv("LMTOOL_ENDPOINT", "ws://env/")
    lines = runner.invoke(build(), ["config", "show", "chat"]).output.splitlines()
    assert 'endpoint = "ws://env/"  # environment LMTOOL_ENDPOINT' in lines
    assert f"verbose = 1  # {project / 'lmtool.toml'}" in lines
    assert "# quiet = false" in lines


def test_it_is_toml(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed is TOML that says what is set, with types; defaults are comments, which could be set so."""
    (project / "lmtool.toml").write_text('[chat]\nstop = ["a\\"b"]\n[trace.diff]\ntol_logprob = 0.5\n')
    monkeypatch.setenv("LMTOOL_MAX_STREAMS", "7")
    monkeypatch.setenv("LMTOOL_API_KEY", "sesame")
    printed = runner.invoke(build(), ["config", "show"]).output
    found = tomllib.loads(printed)
    assert found["chat"] == {"stop": ['a"b']}
    assert found["trace"]["diff"] == {"tol_logprob": 0.5}
    assert found["serve"] == {"max_streams": 7}
    assert "sesame" not in printed
    defaults = [line.removeprefix("# ") for line in printed.splitlines() if line.startswith("# ") and " = " in line]
    assert len(defaults) > 200
    for line in defaults:
        tomllib.loads(line)
    (project / "lmtool.toml").write_text(printed)
    assert runner.invoke(build(), ["config", "show"]).exit_code == 0


def test_unknown_command_is_refused() -> None:
    """A name that is no command: exit 2, and the names there are."""
    result = runner.invoke(build(), ["config", "show", "chatt"])
    assert result.exit_code == 2
    assert "chat" in result.output


def test_path_lists_what_is_read(project: Path) -> None:
    """The files in order, and where one's own would go."""
    (project / "lmtool.toml").write_text("")
    result = runner.invoke(build(), ["config", "path"])
    assert result.output.splitlines()[0] == str(project / "lmtool.toml")
    assert "config/lmtool/lmtool.toml" in result.output
