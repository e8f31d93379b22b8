"""One model of a catalogue."""

from __future__ import annotations

import pytest

from lmtool.core.model_entry import ModelEntry, find, merged


def test_what_is_not_said_is_not_known() -> None:
    """A name alone is a model that answers, of which nothing else is known; an entry never changes."""
    entry = ModelEntry("a")
    assert (entry.phase, entry.aliases, entry.pinned) == ("ready", (), False)
    assert {entry.size_bytes, entry.context_length, entry.idle_seconds, entry.error, entry.architecture} == {None}
    with pytest.raises(AttributeError):
        entry.phase = "failed"  # type: ignore[misc]


def test_several_catalogues_are_one() -> None:
    """Each model once, as it is where an answer is nearest, under all its aliases."""
    here = [ModelEntry("a", ("x",), "loading"), ModelEntry("b", phase="ready", idle_seconds=9.0)]
    there = [ModelEntry("a", ("y",), "ready"), ModelEntry("b", phase="ready"), ModelEntry("c", phase="failed")]
    assert merged([here, there]) == [
        ModelEntry("a", ("x", "y"), "ready"),
        ModelEntry("b", phase="ready"),
        ModelEntry("c", phase="failed"),
    ]


def test_an_entry_is_found_by_any_name() -> None:
    """A name goes before an alias; without one there must be a single entry."""
    one, two = ModelEntry("a", ("b",)), ModelEntry("b", ("c",))
    assert [find([one, two], name) for name in ("a", "b", "c", "d", None)] == [one, two, two, None, None]
    assert (find([one], None), find([], None)) == (one, None)
