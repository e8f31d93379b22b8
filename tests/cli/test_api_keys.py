"""`--api-keys` and `--trusted-proxy` on the command line: contradictions, faults, reloads, and no secret anywhere."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.test_keys import hidden
from tests.conftest import STORIES

if TYPE_CHECKING:
    from tests.conftest import Run, StartServer

CANARY = "canary-secret"
KEYS = f'[[keys]]\nname = "alice"\nkey = "{CANARY}-alice"\nstreams = 4\n'
FAULTY = f'{KEYS}\n[[keys]]\nname = "alice"\nkey = "{CANARY}-other"\n'


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("serve", "--api-keys", "FILE", "--api-key", CANARY), "--api-keys and a key"),
        (("serve", "--api-keys", "FILE", "--no-auth"), "--api-keys and --no-auth"),
        (("serve", "--api-keys", "FILE", "--stdio"), "--stdio and --api-keys"),
        (("balance", "--api-keys", "FILE", "--api-key", CANARY, ":1"), "--api-keys and a key"),
        (("gateway", "--api-keys", "FILE", "--api-key", CANARY), "--api-keys and a key"),
        (("serve", "--trusted-proxy", "127.0.0.1"), "--trusted-proxy accepts requests of other machines"),
        (("serve", "--trusted-proxy", "localhost", "--no-auth"), "--trusted-proxy 'localhost' is no address"),
        (("serve", "--host", "0.0.0.0"), "several keys:"),
    ],
)
def test_contradictions(lmtool: Run, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    """Status 2, both options by name; nothing is loaded."""
    file = tmp_path / "keys.toml"
    file.write_text(KEYS)
    done = lmtool(*(word.replace("FILE", str(file)) for word in words))
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert CANARY not in done.stdout + done.stderr


@pytest.mark.parametrize("command", [("serve",), ("balance", ":1"), ("gateway",)])
def test_faults(lmtool: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    """Status 7, with the file and the line of each fault, and no secret."""
    file = tmp_path / "keys.toml"
    for text, says in ((FAULTY, f"{file}:7: another key has this name"), (None, "no such file")):
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        done = lmtool(*command, "--api-keys", str(file))
        assert done.returncode == 7, done.stderr
        assert says in done.stderr
        assert CANARY not in done.stdout + done.stderr


def test_a_server_with_keys(lmtool: Run, start_server: StartServer, tmp_path: Path) -> None:
    """Clients show a key; SIGHUP changes them, a faulty file nothing; no log, trace, metric or error has a secret."""
    file, trace = tmp_path / "keys.toml", tmp_path / "trace.lmtp.jsonl"
    file.write_text(KEYS)
    with start_server(str(STORIES), "--api-keys", str(file), "--record", str(trace)) as server:
        server.expect("ready in")
        ask = ("chat", "-e", server.url, "Once upon a time max_tokens=5")
        done = lmtool(*ask, LMTOOL_API_KEY=f"{CANARY}-alice")
        assert done.stdout.strip() == ", there was a little", done.stderr
        refused = lmtool(*ask, LMTOOL_API_KEY=f"{CANARY}-bob")
        assert refused.returncode == 4

        file.write_text(FAULTY)
        server.process.send_signal(signal.SIGHUP)
        server.expect(f"warning: the keys stay as they were: {file}:7: another key has this name")
        file.write_text(KEYS.replace("alice", "bob"))
        server.process.send_signal(signal.SIGHUP)
        server.expect("reloaded: keys bob")
        assert lmtool(*ask, LMTOOL_API_KEY=f"{CANARY}-alice").returncode == 4
        told = lmtool("info", "-e", server.url, "--json", LMTOOL_API_KEY=f"{CANARY}-bob")
        assert '"streams": 4' in told.stdout, told.stderr
        assert "your key" in lmtool("info", "-e", server.url, LMTOOL_API_KEY=f"{CANARY}-bob").stdout
        for done_before in (done, refused, told):
            assert CANARY not in done_before.stdout + done_before.stderr
        server.interrupt()
        server.rest()
        assert CANARY not in "\n".join(server.lines)
    file.unlink()
    assert trace.exists()
    hidden(done, tmp_path, CANARY)
