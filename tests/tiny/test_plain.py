"""Text without a chat around it."""

from __future__ import annotations

from random import Random

from lmtool.tiny.plain import SAYINGS, plain, saying_turn


def test_plain_texts_are_whole() -> None:
    """No slot is left open in any kind of plain text."""
    for seed in range(500):
        text = plain(Random(seed)).text
        assert text.strip()
        assert "{" not in text
        assert "[" not in text


def test_some_open_with_the_special_token() -> None:
    """A fifth of them stands behind an end-of-text token, as some clients send it."""
    assert 50 < sum(plain(Random(seed)).opened for seed in range(500)) < 150


def test_sayings_are_completed() -> None:
    """The beginning of a saying is answered with the whole of it."""
    assert all(saying_turn(Random(seed)).reply in SAYINGS for seed in range(100))
