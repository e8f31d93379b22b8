"""Every command and every Python example of the README runs, and prints what the README shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")

CHANGING = re.compile(
    r"\d+(\.\d+)?(?= (ms|s|tok/s)\b)|(?<=p50 )\d+(\.\d+)?|:\d{4,5}|\d\d:\d\d:\d\d|\b\d\.\d+\.\d+\S*|\s+"
    r"|(?<=cpu · )(C kernels \([^)]+\)|oneDNN|torch)"
)
"""Times, ports and versions differ from run to run; widths of white space follow them. So does what computes."""


@dataclass(frozen=True, slots=True)
class Example:
    """A command of a `console` block, and the output that stands below it."""

    command: str
    output: str


def examples() -> list[Example]:
    """Read all `$ ` commands of the README's console blocks, except the server itself, which every test here uses."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", README, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append(Example(command, output))
    return found


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def steady(text: str) -> str:
    """Return the text without what changes from run to run."""
    return CHANGING.sub(" ", text).strip()


@pytest.fixture(scope="module")
def surroundings(embedded: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A user's environment: lmtool on the path, a server of the embedded model as the default endpoint."""
    folder = tmp_path_factory.mktemp("readme")
    scripts = str(Path(sys.executable).parent)
    return os.environ | {
        "PATH": scripts + os.pathsep + os.environ["PATH"],
        "LMTOOL_ENDPOINT": embedded,
        "LMTOOL_PORT": "0",
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "COLUMNS": "100",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader types the commands, one after the other."""
    return tmp_path_factory.mktemp("reader")


@pytest.mark.parametrize(
    "example", [e for e in examples() if not e.command.startswith("lmtool serve")], ids=lambda e: e.command
)
def test_command_prints_what_the_readme_shows(example: Example, surroundings: dict[str, str], folder: Path) -> None:
    """Typed as written, in order, a command succeeds and prints the lines below it."""
    result = subprocess.run(
        ["bash", "-c", example.command],
        env=surroundings,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    shown = [line for line in example.output.splitlines() if line.strip() and line.strip() != "..."]
    printed = steady(result.stdout + "\n" + result.stderr)
    for line in shown:
        assert steady(line) in printed, f"not printed: {line}\n{result.stdout}{result.stderr}"


def test_server_starts_as_the_readme_shows(surroundings: dict[str, str]) -> None:
    """`lmtool serve` says that it is ready, and ends on Ctrl-C."""
    commands = [e.command for e in examples() if e.command.startswith("lmtool serve")]
    assert commands
    for command in commands:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            env=surroundings,
            stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process.stdout:
            lines = iter(process.stdout.readline, "")
            assert any("ready in" in line for line in lines)
            process.send_signal(2)
            for _ in lines:
                pass
        assert process.wait(30) == 0


@pytest.mark.parametrize("source", python_blocks(), ids=lambda s: s.splitlines()[0][:40])
def test_python_example_runs(source: str, surroundings: dict[str, str]) -> None:
    """Each Python example runs as it stands, against the default address."""
    endpoint = surroundings["LMTOOL_ENDPOINT"]
    source = source.replace("ws://127.0.0.1:8080/", endpoint)
    source = source.replace("http://127.0.0.1:8080/", endpoint.replace("ws://", "http://"))
    result = subprocess.run(
        [sys.executable, "-c", source], env=surroundings, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
