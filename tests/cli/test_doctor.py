"""`lmtool doctor`: its checks, and the exit status."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.cli import doctor
from lmtool.cli.common_options import ClientCommon
from lmtool.serving import composition as wiring

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.conftest import Run

NO_SERVER = "127.0.0.1:1"


def test_a_whole_installation_is_well(lmtool: Run) -> None:
    """Nothing broken: exit status 0, each thing on a line of its own."""
    done = lmtool("doctor", "-e", NO_SERVER)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("✓", "!", "✗"))]
    assert names[:9] == ["python", "client", "serve", "embedded", "memory", "cache", "settings", "terminal", "endpoint"]
    assert {"torch", "kernels"} <= set(names)


async def test_json_has_the_same_findings(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` has the same findings, in one list."""
    await doctor.doctor(ClientCommon(endpoint=served), json=True)
    findings = {f["name"]: f for f in json.loads(capsys.readouterr().out)}
    assert findings["python"]["verdict"] == "ok"
    assert "serves stories260K" in findings["endpoint"]["found"]


def test_a_client_installation_has_the_line_to_install_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch nothing is broken: a client machine installs without it."""
    monkeypatch.setattr(wiring, "SERVE_PACKAGES", ("torch", "no_such_package_anywhere"))
    serving = check("serve")
    assert serving.verdict == "note"
    assert "no_such_package_anywhere" in serving.detail
    assert "pip install 'lmtool[serve]'" in serving.advice


def test_a_missing_client_package_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a package that talking needs, the installation is broken."""
    monkeypatch.setattr(doctor, "CLIENT", ("no_such_package_anywhere",))
    assert check("client").verdict == "bad"


def test_settings_files_are_named(tmp_path: Path) -> None:
    """The settings files in effect are named."""
    (tmp_path / "lmtool.toml").write_text("[chat]\n")
    assert check("settings").detail == str(tmp_path / "lmtool.toml")


def check(name: str) -> doctor.Finding:
    return next(finding for finding in doctor.quick_checks(ClientCommon()) if finding.name == name)


async def test_a_gpu_is_untried(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is one, a note says on which one lmtool was run; elsewhere, and on that one, nothing does."""
    devices = [("cpu", "AVX512"), ("cuda:0", "a GPU, 79 of 80 GB free")]
    tried = [devices[0], ("cuda:0", "NVIDIA H200, 139 of 140 GB free")]
    for known, expected in ((devices, [("cuda:0", "note")]), (devices[:1], []), (tried, [])):
        monkeypatch.setattr("lmtool.inference.engine.hardware.describe_devices", lambda known=known: known)
        await doctor.doctor(ClientCommon(endpoint=NO_SERVER), json=True)
        findings = json.loads(capsys.readouterr().out)
        untried = [found for found in findings if "tested on an NVIDIA H200 only" in found["advice"]]
        assert [(found["name"], found["verdict"]) for found in untried] == expected
