"""Options of the door, and the policy that they make."""

from __future__ import annotations

import socket

import pytest

from lmtool.core.errors import UsageError
from lmtool.net.access.names import machine_names
from lmtool.net.access.policy import find_refusal
from lmtool.serving.access_config import AccessConfig
from lmtool.serving.config import ListenConfig
from lmtool.serving.model_names import parse_bytes

HERE = ListenConfig()
EVERYWHERE = ListenConfig("0.0.0.0")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "mybox", "127.evil.example"])
def test_other_machines_need_a_key(host: str) -> None:
    """Or a word that they need none; this machine alone needs neither."""
    listen = ListenConfig(host)
    with pytest.raises(UsageError, match="no key is asked for") as refused:
        AccessConfig().policy(listen)
    assert refused.value.exit_code == 2
    assert any("--no-auth" in hint for hint in refused.value.hints)
    assert AccessConfig().policy(listen, "key").key == "key"
    assert AccessConfig(no_auth=True).policy(listen).key is None
    for loopback in ("127.0.0.1", "localhost", "::1", "127.0.0.2"):
        assert AccessConfig().policy(ListenConfig(loopback)).key is None


def test_no_auth_and_a_key() -> None:
    """They contradict each other."""
    with pytest.raises(UsageError, match="contradict"):
        AccessConfig(no_auth=True).policy(HERE, "key")


@pytest.mark.parametrize(
    "name", [*machine_names(socket.gethostname()), "GPU-Box", "models.example", "localhost", "::1"]
)
def test_names(name: str) -> None:
    """This machine's own, the one it listens on, those allowed, loopback, addresses: and no other."""
    policy = AccessConfig(allow_host=("Models.example:443",), no_auth=True).policy(ListenConfig("gpu-box"))
    assert find_refusal(policy, [("host", f"[{name}]:80" if ":" in name else f"{name}:80")]) is None
    assert find_refusal(policy, [("host", "evil.example")]) is not None


def test_origins() -> None:
    """As browsers spell them."""
    policy = AccessConfig(allow_origin=("https://Good.example/", "https://a.example:443", "null")).policy(HERE)
    assert policy.origins == ("https://good.example", "https://a.example", "null")


@pytest.mark.parametrize(
    ("config", "key", "message"),
    [
        (AccessConfig(allow_origin=("good.example",)), None, "--allow-origin 'good.example' is not an origin"),
        (AccessConfig(allow_host=("http://a.example",)), None, "--allow-host 'http://a.example' is not a host name"),
        (AccessConfig(), "two words", "API key"),
        (AccessConfig(), "", "API key"),
    ],
)
def test_what_could_never_match_is_refused(config: AccessConfig, key: str | None, message: str) -> None:
    """Where it is given, and not by silence later."""
    with pytest.raises(UsageError, match=message) as refused:
        config.policy(EVERYWHERE if key else HERE, key)
    assert refused.value.hints


def test_a_key_is_not_shown_by_its_configuration() -> None:
    """What is printed of it has none."""
    assert "sesame" not in repr(AccessConfig().policy(HERE, "sesame"))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4_000_000_000),
        ("512MiB", 512 << 20),
        ("1000", 1000),
        ("1000 B", 1000),
        ("1.5 GiB", 3 << 29),
        ("2g", 2_000_000_000),
        ("3 kib", 3072),
        ("1TB", 10**12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    """Units of 1000 and of 1024, in any case, with and without a blank; a bare number is bytes."""
    assert parse_bytes(text, "--memory") == size


@pytest.mark.parametrize(
    "text", ["", "GB", "-1GB", "4 apples", "0", "0.1B", "1e9", "9" * 40, "2000000TB", "4GBB", "inf"]
)
def test_no_sizes(text: str) -> None:
    """Anything else is an error that names the option, the value and what was expected."""
    with pytest.raises(UsageError, match=r"--memory is '.*'; expected a size in bytes") as refused:
        parse_bytes(text, "--memory")
    assert "4GB" in refused.value.hints[0]
