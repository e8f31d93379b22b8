"""Options that work before and after every command's name."""

from __future__ import annotations

import pytest

from lmtool.cli.invocation import DEFAULT_ENDPOINT, Common


def test_endpoint_is_the_default_where_nobody_said() -> None:
    """Neither option nor settings: the address that `lmtool serve` takes by itself."""
    assert Common().url == DEFAULT_ENDPOINT
    assert Common(endpoint="ws://127.0.0.1:9/").url == "ws://127.0.0.1:9/"


def test_what_stands_behind_the_command_wins() -> None:
    """An option said twice counts where it was said last; one said only before the command still counts."""
    outer = Common(endpoint="ws://outer/", color="never", verbose=1)
    inner = Common(endpoint="ws://inner/", quiet=True)
    assert inner.under(outer) == Common("ws://inner/", "never", quiet=True, verbose=1)
    assert inner.under(None) is inner


@pytest.mark.parametrize(("value", "wanted"), [("", False), ("0", False), ("1", True)])
def test_debug_shows_tracebacks(value: str, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracebacks are for `-vv` and for LMTOOL_DEBUG=1."""
    monkeypatch.setenv("LMTOOL_DEBUG", value)
    assert Common().debug is wanted
    assert Common(verbose=2).debug
