"""Entries wait in order and leave in frames."""

from hypothesis import given
from hypothesis import strategies as st

from lmtool.lmtp.outbox import Outbox


def drain(outbox):
    frames = []
    while (frame := outbox.next_frame()) is not None:
        frames.append(frame)
    return frames


def test_empty():
    """Nothing waits at first."""
    outbox = Outbox(100)
    assert outbox.next_frame() is None
    assert outbox.waiting_bytes == 0


def test_tokens_share_a_frame():
    """Neighbouring TOKEN entries leave together, a MSG leaves alone, and the order stays."""
    outbox = Outbox(100)
    for command, entry in [("TOKEN", b"1"), ("TOKEN", b"2"), ("MSG", b"3"), ("MSG", b"4"), ("TOKEN", b"5")]:
        outbox.put(command, entry)
    assert outbox.waiting_bytes == 5
    assert drain(outbox) == ["TOKEN [1,2]", "MSG [3]", "MSG [4]", "TOKEN [5]"]
    assert outbox.waiting_bytes == 0


@given(st.lists(st.tuples(st.sampled_from(["TOKEN", "MSG"]), st.integers(1, 30)), max_size=30))
def test_frames_have_a_limit(made):
    """No frame's entries exceed the limit unless one entry does; no entry is lost."""
    outbox = Outbox(40)
    for number, (command, size) in enumerate(made):
        outbox.put(command, chr(97 + number % 26).encode() * size)
    frames = drain(outbox)
    assert all(len(frame) <= len("TOKEN []") + 40 for frame in frames)
    entries = [entry for frame in frames for entry in frame.partition(" ")[2][1:-1].split(",")]
    assert entries == [chr(97 + number % 26) * size for number, (_, size) in enumerate(made)]


def test_a_large_entry_leaves_alone():
    """An entry above the limit is not held back for ever."""
    outbox = Outbox(10)
    outbox.put("TOKEN", b"x" * 50)
    outbox.put("TOKEN", b"y")
    assert drain(outbox) == [f"TOKEN [{'x' * 50}]", "TOKEN [y]"]
