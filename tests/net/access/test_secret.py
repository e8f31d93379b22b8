"""Secrets that cannot be shown by accident."""

from __future__ import annotations

import json
import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.net.access.secret import Secret, SecretFilter

KEY = "sk-canary-0123456789"


def test_no_way_of_printing_shows_it(caplog: pytest.LogCaptureFixture) -> None:
    """str, repr, formats, containers and log records show three stars; `reveal` alone gives the text."""
    secret = Secret(KEY)
    logging.getLogger("lmtool").warning("key %s %r", secret, {"key": [secret]})
    shown = [str(secret), repr(secret), f"{secret}", f"{secret:>20}", f"{secret!s}", str([secret]), caplog.text]
    assert not [one for one in shown if KEY in one]
    assert str(secret) == repr(secret) == "***"
    assert secret.reveal() == KEY


def test_no_encoder_takes_it() -> None:
    """An answer or a trace that would hold a secret fails to be written instead of leaking it."""
    for encode in (json.dumps, msgspec.json.encode):
        with pytest.raises(TypeError):
            encode({"key": Secret(KEY)})


def test_equal_by_its_text() -> None:
    """A key that was read again can be compared with the old one; an empty one is false."""
    assert Secret("a") == Secret("a")
    assert hash(Secret("a")) == hash(Secret("a"))
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert not Secret("")


@given(st.lists(st.sampled_from([KEY, "sk-", "sk-canary", "a", "\n", "***"])), st.integers(1, 7))
def test_a_secret_in_passing_bytes_is_masked_however_they_are_cut(parts: list[str], size: int) -> None:
    """All other bytes stay as they are."""
    text = "".join(parts)
    masking = SecretFilter([Secret(KEY)])
    data = text.encode()
    passed = [masking.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert b"".join([*passed, masking.finish()]).decode() == text.replace(KEY, "***")
