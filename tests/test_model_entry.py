"""One model of a catalogue."""

from __future__ import annotations

import pytest

from lmtool.model_entry import ModelEntry


def test_what_is_not_said_is_not_known() -> None:
    """A name alone is a model that answers, of which nothing else is known; an entry never changes."""
    entry = ModelEntry("a")
    assert (entry.phase, entry.aliases, entry.pinned) == ("ready", (), False)
    assert {entry.size_bytes, entry.context_length, entry.idle_seconds, entry.error, entry.architecture} == {None}
    with pytest.raises(AttributeError):
        entry.phase = "failed"  # type: ignore[misc]
