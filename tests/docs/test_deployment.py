"""The unit and the container file of `lmtool docs deployment` do what the page says."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.docs.examples import ROOT
from tests.docs.reader import BIN

PAGE = (ROOT / "lmtool/docs/deployment.md").read_text(encoding="utf-8")
UNIT, KEYS_UNIT = re.findall(r"^```ini\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(CONTAINER,) = re.findall(r"^```dockerfile\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
INSTALLED = "/opt/lmtool/bin"
PATIENCE = 120.0


def settings(unit: str, name: str) -> list[str]:
    """The values of a setting of a unit."""
    return [line.partition("=")[2] for line in unit.splitlines() if line.startswith(f"{name}=")]


@contextlib.contextmanager
def started(environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """What ExecStart says, with the variables of the unit: `$NAME` alone is split into words (systemd.service)."""
    variables = dict(one.split("=", 1) for one in settings(UNIT, "Environment")) | environment
    (command,) = settings(UNIT, "ExecStart")
    words = [
        part
        for word in shlex.split(command)
        for part in (variables[word[1:]].split() if word.startswith("$") else [word])
    ]
    variables["PATH"] = variables["PATH"].replace(INSTALLED, str(BIN))
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=variables, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_unit_starts_the_server(tmp_path: Path) -> None:
    """ExecStart as written: it serves, writes JSON, and ends with 0 when it is stopped, so that systemd is content."""
    ready = tmp_path / "ready"
    own = {"HOME": str(tmp_path), "LMTOOL_PORT": "0", "LMTOOL_READY_FILE": str(ready)}
    with started(own) as process:
        until = time.monotonic() + PATIENCE
        while not ready.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
        assert process.wait(PATIENCE) == 0, lines
    events = [json.loads(line) for line in lines]
    assert any("ready" in str(event).lower() for event in events), lines


def test_a_server_that_is_open_to_all_does_not_start(tmp_path: Path) -> None:
    """Without a key other machines are not let in; the status is one of those that systemd does not try again."""
    with started({"HOME": str(tmp_path), "LMTOOL_HOST": "0.0.0.0"}) as process:
        output, _ = process.communicate(timeout=PATIENCE)
    assert "no key is asked for" in output
    assert str(process.returncode) in settings(UNIT, "RestartPreventExitStatus")[0].split()


def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    """Also with what `systemctl edit` adds."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    unit = tmp_path / "lmtool.service"
    more = unit.with_suffix(".service.d")
    more.mkdir()
    unit.write_text(UNIT)
    (more / "override.conf").write_text(KEYS_UNIT)
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def image_lines(name: str) -> list[str]:
    """The arguments of an instruction of the container file."""
    return [line.partition(" ")[2] for line in CONTAINER.splitlines() if line.startswith(f"{name} ")]


def test_the_container_asks_for_a_key(tmp_path: Path) -> None:
    """Its CMD as written is open to other machines: without a key it does not start, and says why."""
    (command,) = (json.loads(line) for line in image_lines("CMD"))
    path = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(command, env=path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2
    assert "LMTOOL_API_KEY" in done.stderr


@pytest.mark.peer
def test_the_container_in_a_fresh_environment(tmp_path: Path) -> None:
    """RUN and CMD lines, in the order of the file, in a copy of the checkout; the image's paths are below a folder."""
    (work,) = image_lines("WORKDIR")

    def placed(text: str) -> str:
        return re.sub(r"(?<![\w.])(/opt/lmtool|/var/cache/lmtool)", lambda path: f"{tmp_path}{path[0]}", text)

    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        target = Path(placed(work)) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    environment = {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_", "HTTP"))}
    environment["PATH"] = f"{Path(sys.base_prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    for line in CONTAINER.splitlines():
        instruction, _, rest = line.partition(" ")
        if instruction == "ENV":
            name, _, value = placed(rest).partition("=")
            environment[name] = value
        elif instruction == "RUN":
            subprocess.run(placed(rest), shell=True, cwd=placed(work), env=environment, check=True)
        elif instruction == "CMD":
            ready = tmp_path / "ready"
            own = {"LMTOOL_PORT": "0", "LMTOOL_READY_FILE": str(ready), "LMTOOL_API_KEY": "secret"}
            with subprocess.Popen(json.loads(rest), env={**environment, **own}, cwd=placed(work)) as process:
                until = time.monotonic() + PATIENCE
                while not ready.exists() and process.poll() is None and time.monotonic() < until:
                    time.sleep(0.05)
                assert ready.exists()
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE) == 0


@pytest.mark.peer
def test_the_image_is_built(tmp_path: Path) -> None:
    """By podman or docker, from a checkout."""
    program = shutil.which("podman") or shutil.which("docker")
    if program is None or subprocess.run([program, "info"], capture_output=True, check=False).returncode:
        pytest.skip("neither podman nor docker runs here")
    file = tmp_path / "Containerfile"
    file.write_text(CONTAINER)
    subprocess.run([program, "build", "-f", str(file), "-t", "lmtool-test", str(ROOT)], check=True)
