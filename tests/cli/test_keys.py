"""Keys on the command line: every client of ours shows one, however it is given, and nothing that is said tells it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.net.access.knocking import KEY

if TYPE_CHECKING:
    from tests.conftest import Run, ServerProcess, StartServer

RECORDING = str(Path(__file__).parents[2] / "recordings/defaults.lmtp.jsonl")
SHORT = ("--concurrency", "1", "--requests", "1", "--output-len", "3", "--prompt-len", "4", "--warmup", "0")
CLIENTS: dict[str, tuple[str, ...]] = {
    "chat": ("chat", "-e", "URL", "Once upon a time max_tokens=2", "--record", "said.lmtp.jsonl"),
    "score": ("score", "-e", "URL", "Once upon", " a time"),
    "info": ("info", "-e", "URL"),
    "info as JSON": ("info", "-e", "URL", "--json"),
    "bench serve": ("bench", "serve", "URL", *SHORT, "--save", "kept.json"),
    "bench serve over HTTP": ("bench", "serve", "HTTP/v1", *SHORT, "--vocab-size", "500", "--api", "completions"),
    "conformance server": ("conformance", "server", "URL", "--only", "TRA-12", "--json", "report.json"),
    "audit": ("audit", "URL", "--only", "repeat", "--trace", "said.lmtp.jsonl"),
    "audit over HTTP": ("audit", "HTTP/v1", "--only", "repeat", "--trace", "said.lmtp.jsonl", "--json"),
    "trace drive": ("trace", "drive", RECORDING, "--to", "URL", "--save", "came.lmtp.jsonl"),
    "trace verify": ("trace", "verify", RECORDING, "--to", "URL"),
    "inspect": (
        "inspect",
        "URL",
        "--plain",
        "--prompt",
        "Hi",
        "-n",
        "2",
        "--exit-at",
        "end",
        "--record",
        "seen.lmtp.jsonl",
    ),
}
"""Commands, by what they are; URL and HTTP stand for the server's."""


def filled(words: tuple[str, ...], server: ServerProcess, credentials: str = "") -> list[str]:
    place = server.url.partition("://")[2].rstrip("/")
    urls = {"URL": f"ws://{credentials}{place}/", "HTTP": f"http://{credentials}{place}"}
    return [word.replace("URL", urls["URL"]).replace("HTTP", urls["HTTP"]) for word in words]


def hidden(done: subprocess.CompletedProcess[str], folder: Path, secret: str) -> None:
    """Neither what was said nor a file that was made tells it."""
    assert secret not in done.stdout + done.stderr
    for file in folder.rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes(), file


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_shows_its_key(lmtool: Run, keyed: ServerProcess, tmp_path: Path, client: str) -> None:
    """In the server's URL; what is printed and what is written has it without the key."""
    done = lmtool(*filled(CLIENTS[client], keyed, f"user:{KEY}@"))
    assert done.returncode == 0, done.stdout + done.stderr
    hidden(done, tmp_path, KEY)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_wrong_key_is_told_with_what_to_do(lmtool: Run, keyed: ServerProcess, tmp_path: Path, client: str) -> None:
    """Status 4, the option that helps; and not what was shown."""
    done = lmtool(*filled(CLIENTS[client], keyed), LMTOOL_API_KEY="sesame")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "refuses the API key that it was shown\n" in done.stderr
    assert "--api-key KEY" in done.stderr
    hidden(done, tmp_path, "sesame")


def test_no_key_is_told_with_what_to_do(lmtool: Run, keyed: ServerProcess) -> None:
    """Over both wires."""
    for client in ("info", "bench serve over HTTP"):
        done = lmtool(*filled(CLIENTS[client], keyed))
        assert done.returncode == 4
        assert "asks for an API key\n" in done.stderr
        assert "--api-key KEY" in done.stderr


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_option(lmtool: Run, keyed: ServerProcess, place: str) -> None:
    """It stands before the command or behind it; the one in a URL comes before it."""
    option, words = ("--api-key", KEY), ("info", "-e", keyed.url)
    done = lmtool(*option, *words) if place == "before" else lmtool(*words, *option)
    assert done.returncode == 0, done.stderr
    own = keyed.url.replace("ws://", f"ws://user:{KEY}@")
    assert lmtool("info", "-e", own, "--api-key", "other").returncode == 0
    assert lmtool("info", "-e", keyed.url, "--api-key", "two words").returncode == 2


def test_those_who_only_look(lmtool: Run, keyed: ServerProcess, tmp_path: Path) -> None:
    """`models` and `doctor` tell that a server wants a key, and go on; with it they tell what it serves."""
    for command in ("models", "doctor"):
        done = lmtool(command, "-e", keyed.url.replace("ws://", "ws://u:sesame@"))
        assert done.returncode == 0
        assert "refuses the API key" in done.stdout + done.stderr
        hidden(done, tmp_path, "sesame")
        assert "stories260K" in lmtool(command, "-e", keyed.url, LMTOOL_API_KEY=KEY).stdout


def test_a_port_in_use_by_a_server_with_a_key(lmtool: Run, keyed: ServerProcess) -> None:
    """The probe shows the key too; a server that wants another one is told as such."""
    port = keyed.url.rstrip("/").rpartition(":")[2]
    assert "(model stories260K)" in lmtool("serve", "auto", "--port", port, LMTOOL_API_KEY=KEY).stderr
    assert "(which wants another key)" in lmtool("serve", "auto", "--port", port).stderr


def test_a_balancer_in_front(start_server: StartServer, lmtool: Run, keyed: ServerProcess, tmp_path: Path) -> None:
    """It asks for its key and shows it to its servers; one in a server's URL is shown to that one instead."""
    inner = keyed.url.replace("ws://", f"ws://user:{KEY}@")
    for url, own in ((keyed.url, KEY), (inner, "another")):
        with start_server(url, command="balance", LMTOOL_API_KEY=own) as balancer:
            balancer.expect("ready in")
            assert lmtool("info", "-e", balancer.url, LMTOOL_API_KEY=own).returncode == 0
            assert lmtool("info", "-e", balancer.url).returncode == 4
        assert KEY not in "\n".join(balancer.lines)
    with start_server(inner.replace(KEY, "sesame"), command="balance", LMTOOL_API_KEY="own") as balancer:
        told = balancer.expect("is down")
    assert "refuses the API key" in told
    assert "sesame" not in told


def test_replicas(start_server: StartServer, lmtool: Run) -> None:
    """Workers of a server's own speak over pipes and need none; their server asks for it all the same."""
    words = ("--backend", "random", "--replicas", "2")
    with start_server(*words, LMTOOL_API_KEY=KEY) as server:
        server.expect("ready in")
        assert lmtool("info", "-e", server.url, LMTOOL_API_KEY=KEY).returncode == 0
        assert lmtool("info", "-e", server.url).returncode == 4


@pytest.mark.parametrize(
    "words",
    [
        ("balance", "ws://127.0.0.1:1/", "--host", "0.0.0.0", "--port", "0"),
        ("trace", "record", "--to", "ws://127.0.0.1:1/", "--listen", "0.0.0.0:0"),
        ("trace", "serve", RECORDING, "--host", "0.0.0.0", "--port", "0"),
        ("inspect", "--plain", "--proxy", "0.0.0.0:0", "--to", "ws://127.0.0.1:1/"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_other_machines_need_a_key_wherever_a_port_is_opened(lmtool: Run, words: tuple[str, ...]) -> None:
    """Status 2 and what to do, before anything is opened."""
    done = lmtool(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no key is asked for" in done.stderr
    assert "--no-auth" in done.stderr


def test_a_recorder_adds_no_key(lmtool: Run) -> None:
    """The key for the server behind is its clients' to send: one in --to is refused, and not told."""
    done = lmtool("trace", "record", "--to", "ws://u:sesame@127.0.0.1:1/", "--listen", "127.0.0.1:0")
    assert done.returncode == 2
    assert "clients send the key for" in done.stderr
    assert "sesame" not in done.stderr


def test_options_of_a_port_that_is_not_opened(lmtool: Run) -> None:
    """They are refused rather than passed over."""
    done = lmtool("inspect", RECORDING, "--plain", "--allow-host", "a.example")
    assert done.returncode == 2
    assert "--proxy" in done.stderr
    done = lmtool("serve", "--stdio", "--allow-origin", "*")
    assert (done.returncode, "--allow-origin contradict" in done.stderr) == (2, True)


def test_settings_are_shown_without_keys(lmtool: Run, tmp_path: Path) -> None:
    """`config show` tells where a key comes from, not what it is; nor one in a URL."""
    (tmp_path / "lmtool.toml").write_text(
        'api_key = "sesame"\nendpoint = "ws://u:sesame@h/"\n[trace.verify]\nto = ["http://sesame@h/v1"]\n'
    )
    done = lmtool("config", "show", "trace.verify")
    assert "api_key is set in " in done.stdout
    assert 'to = ["http://h/v1"]' in done.stdout
    assert 'endpoint = "ws://h/"' in lmtool("config", "show", "info").stdout
    environment = {"LMTOOL_API_KEY": "sesame", "LMTOOL_ENDPOINT": "u:sesame@h:1"}
    told = lmtool("config", "show", "chat", **environment).stdout
    assert "api_key is set in environment LMTOOL_API_KEY; its value is not shown" in told
    assert 'endpoint = "h:1"' in told
    assert "sesame" not in done.stdout + told
    (tmp_path / "lmtool.toml").unlink()
    assert "# api_key =" in lmtool("config", "show", "chat").stdout
