"""A reader who types the examples: a folder, an environment, a server at the default address."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.cli.terminal import terminal
from tests.docs.examples import Example
from tests.forkserver import LMTOOL, spawn

STORIES = Path(__file__).parent.parent / "data/stories260K"
BIN = Path(os.environ.get("LMTOOL_DOCS_BIN") or Path(sys.executable).parent)
"""Where the `lmtool` and `python` are that a reader types: `LMTOOL_DOCS_BIN`, or this environment."""
PROGRAM = (sys.executable, *LMTOOL) if Path(sys.executable).parent == BIN else (str(BIN / "lmtool"),)
"""What `lmtool` is where no shell looks for it."""
PATIENCE = 90.0
SERVERS = re.compile(r"(\w+=\S+ )*lmtool (serve|balance|gateway|trace serve|trace record)\b")
"""Commands that stay until Ctrl-C."""
THERE = re.compile(r"ready in|recording |answering ")
"""What such a command says once it can be used."""
ON_SCREEN = re.compile(r"lmtool (inspect\b|serve --inspect)(?!.*--(snapshot|export|plain|exit-at))")
ALONE = re.compile(r"lmtool [^|<>;&$`*()\\~]*")
"""A command of lmtool that needs nothing of a shell."""
SMALLER = {
    "gpt2-medium": str(STORIES),
    "./folder": str(STORIES),
    "ws://one:8080/ ws://two:8080/": "ws://127.0.0.1:8080/ ws://localhost:8080/",
    "--host 0.0.0.0": "--host 127.0.0.1",
    "--concurrency 1,8": "--concurrency 1,2 --requests 2",
    "--scenario S7": "--scenario S7 --concurrency 1 --requests 2",
}
"""What stands for models and machines that a test has not, and for what takes long."""


@dataclass
class Reader:
    """Types one page's examples, one after the other."""

    folder: Path
    address: str
    """URL of the server that answers at the default address."""
    ports: dict[str, str] = field(default_factory=dict)
    """Free ports, each in place of one that a page names."""

    @property
    def environment(self) -> dict[str, str]:
        """A user's environment, with lmtool on the path."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LMTOOL_")}
        return kept | {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "LMTOOL_ENDPOINT": self.address,
            "LMTOOL_PORT": "0",
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),  # kernels compiled once
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
        }

    def adapt(self, source: str) -> str:
        """Return the source for this machine: the real server's port, free ones for others, small models."""
        for large, small in SMALLER.items():
            source = source.replace(large, small)
        source = source.replace(":8080", f":{urlsplit(self.address).port}")
        return re.sub(r"\b80[89]\d\b", lambda match: self.ports.setdefault(match[0], free_port()), source)

    def type(self, example: Example) -> None:
        """Do as a reader does; fails where the page does not tell the truth."""
        printed = self.run(example)
        if printed is not None:
            assert not (missing := example.missing_from(printed)), f"not printed: {missing}\n{printed}"

    def run(self, example: Example) -> str | None:
        """Return what an example prints; None for scripts and for what draws on the screen."""
        source = self.adapt(example.source)
        if example.language == "python":
            result = self._run([str(BIN / "python"), "-c", source])
            assert result.returncode == 0, result.stderr
            assert result.stdout.strip()
            return None
        if ON_SCREEN.match(source):
            self._look(source)
            return None
        if SERVERS.match(source) and example.language != "text":
            return self._serve(source)
        result = self._run_alone(source) if ALONE.fullmatch(source) else self._run(["bash", "-c", source])
        assert (result.returncode == 0) is (example.language != "text"), result.stdout + result.stderr
        return result.stdout + "\n" + result.stderr

    def _run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    def _run_alone(self, source: str) -> subprocess.CompletedProcess[str]:
        words = shlex.split(source, comments=True)[1:]
        with spawn(words, program=PROGRAM, env=self.environment, cwd=self.folder) as process:
            try:
                output, errors = process.communicate("", PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.wait(), output, errors)

    def _serve(self, source: str) -> str:
        """Start a server, wait until it says where it listens, end it with Ctrl-C, and return what it has printed."""
        words = shlex.split(source, comments=True)
        at = next(i for i, word in enumerate(words) if "=" not in word)  # variables stand in front
        with spawn(
            words[at + 1 :],
            program=PROGRAM,
            heavy=True,
            env=self.environment | dict(word.split("=", 1) for word in words[:at]),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        ) as process:
            watch = threading.Timer(PATIENCE, process.kill)
            watch.start()
            printed = []
            assert process.stdout is not None
            for line in process.stdout:
                printed.append(line)
                if re.search(THERE, line):
                    process.send_signal(signal.SIGINT)
            watch.cancel()
        assert process.returncode == 0, "".join(printed)
        return "".join(printed)

    def _look(self, source: str) -> None:
        """Open what draws on the screen, see that it draws, and leave it with `q`."""
        words = shlex.split(source, comments=True)[1:]
        around = {name: value for name, value in self.environment.items() if name != "COLUMNS"}
        with terminal(*words, program=PROGRAM, cwd=self.folder, **around) as screen:
            if len(re.findall(r"\S+\.jsonl", source)) > 1:
                screen.until("Compare 1/")
                screen.press("\x1b")
            screen.until("1 Streams")
            screen.press("q")
            assert screen.end() == 0, screen.text


def free_port() -> str:
    """Return a port that nobody listens on now."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
