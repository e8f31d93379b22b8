"""What the limits are unless somebody changes them."""

import dataclasses

from lmtool.lmtp.config import ServerConfig


def test_frames_are_as_long_as_lmqls():
    """LMQL sends masks of up to the vocabulary's size: the frame limit is its own, 4 MiB."""
    assert ServerConfig().max_frame_bytes == 4 * 1024 * 1024


def test_sent_frames_are_shorter_than_clients_read():
    """LMQL's client reads frames of 4 MiB, other libraries 1 MiB."""
    assert ServerConfig().max_sent_frame_bytes <= 1024 * 1024


def test_every_limit_is_finite():
    """Nothing that a stranger can use up is without a limit."""
    config = ServerConfig()
    numbers = [getattr(config, field.name) for field in dataclasses.fields(config)]
    assert all(0 < number < 2**31 for number in numbers)
