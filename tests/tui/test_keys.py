"""The table of actions and its changes by settings."""

from __future__ import annotations

from collections import Counter

import pytest

from lmtool.errors import UsageError
from lmtool.tui.app import InspectorApp
from lmtool.tui.keys import ACTIONS, Keys, shown


def test_every_action_has_a_method_and_keys_of_its_own() -> None:
    """No key does two things, no action is without a key, and the app can do each."""
    counts = Counter(key for action in ACTIONS for key in action.keys)
    assert counts.most_common(1)[0][1] == 1
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)
    for action in ACTIONS:
        assert action.keys
        assert callable(getattr(InspectorApp, f"action_{action.id}"))


def test_keys_that_terminals_cannot_tell_apart_are_not_used() -> None:
    """Nor those that tmux, flow control and job control take; alt is unreliable."""
    used = {key for action in ACTIONS for key in action.keys}
    assert not used & {"ctrl+b", "ctrl+s", "ctrl+z", "ctrl+h", "ctrl+i", "ctrl+m"}
    assert not [key for key in used if key.startswith("alt+")]


def test_a_changed_key() -> None:
    """It is taken from the action that had it; the old one is free."""
    keys = Keys({"pause": "p, n"})
    assert keys.action("p", "p") == keys.action("n", "n") == "pause"
    assert keys.action("space", " ") is None
    assert keys.signs("pause") == "p n"
    assert keys.sign("surprising") == ""


def test_characters_and_names() -> None:
    """A key is known by what it types or by its name; the case of a letter counts."""
    keys = Keys()
    assert keys.action("question_mark", "?") == "help"
    assert keys.action("left_square_bracket", "[") == "frame_back"
    assert keys.action("upper_n", "N") == "surprising_back"
    assert keys.action("space", " ") == "pause"
    assert keys.action("f9", None) is None
    assert Keys({"pause": ","}).action("comma", ",") == "pause"
    assert (shown("ctrl+p"), shown("escape"), shown("x")) == ("^p", "esc", "x")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"puase": "p"}, "no action 'puase'"),
        ({"pause": "p", "heat": "p"}, "'p' is given to 'pause' and to 'heat'"),
        ({"quit": ""}, "no key is left for 'quit'"),
    ],
)
def test_changes_that_make_no_sense(changes: dict[str, str], said: str) -> None:
    """Are refused, with what is possible."""
    with pytest.raises(UsageError) as caught:
        Keys(changes)
    assert said in caught.value.message
    assert caught.value.hints


@pytest.mark.parametrize("pane", ["streams", "tokens", "detail", "frames", "time"])
def test_the_line_of_a_pane(pane: str) -> None:
    """Begins with pause, has no action twice, and ends with quit."""
    ids = [action.id for action in Keys().line(pane)]
    assert ids[0] == "pause"
    assert ids[-1] == "quit"
    assert len(set(ids)) == len(ids)
    assert Keys().of_pane(pane)
