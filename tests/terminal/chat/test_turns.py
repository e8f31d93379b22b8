"""Turns of a conversation as a tree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmtool.core.types import ChatMessage
from lmtool.terminal.chat import turns
from lmtool.terminal.chat.turns import Turn, TurnTree, turn_from


def made(number: int, behind: int = 0) -> Turn:
    """A turn with an answer."""
    return Turn(number, behind, f"p{number}", f"p{number}", f"a{number}", "stop")


def grown(*numbers: int) -> TurnTree:
    """A conversation of turns in a row."""
    tree = TurnTree()
    for number in numbers:
        tree.add(made(number))
    return tree


def test_path() -> None:
    """The next prompt follows the turn that was added last, or the one that was gone back to."""
    tree = grown(1, 2)
    assert [turn.number for turn in tree.path()] == [1, 2]
    assert tree.go_to(1)
    tree.add(made(3))
    assert [turn.number for turn in tree.path()] == [1, 3]
    assert tree.go_to(2)
    assert [turn.number for turn in tree.path()] == [1, 2]
    assert not tree.go_to(7)
    assert tree.head == 2
    assert tree.last_number == 3


def test_answers_that_end_in_another_order() -> None:
    """Turns stand in the order in which their answers ended."""
    tree = grown(2, 1)
    assert [turn.number for turn in tree.path()] == [2, 1]


def test_messages() -> None:
    """What is sent are the turns of the path that have an answer, as they were sent, without those dropped."""
    tree = grown(1)
    tree.add(replace(made(2), answer=""))
    tree.add(replace(made(3), text="p3 with a file"))
    assert [message.content for message in tree.messages()] == ["p1", "a1", "p3 with a file", "a3"]
    assert tree.messages()[0] == ChatMessage("user", "p1")
    assert tree.forget_oldest()
    assert [message.content for message in tree.messages()] == ["p3 with a file", "a3"]
    assert tree.forget_oldest()
    assert not tree.forget_oldest()


def test_outline() -> None:
    """Branches are indented, their turns in a row are not."""
    tree = grown(1, 2, 3)
    tree.go_to(1)
    tree.add(made(4))
    shown = [(turn.number, indent, on_path) for turn, indent, on_path in tree.outline()]
    assert shown == [(1, "", True), (2, "  ", False), (3, "  ", False), (4, "  ", True)]


def test_round_trip() -> None:
    """A turn is what its event in a trace says."""
    turn = Turn(3, 1, "p @f", "p with f", "a", "length", "Be brief.", "m")
    assert turn_from(turn.to_json()) == turn
    assert turn_from(made(1).to_json()) == made(1)


@pytest.mark.parametrize(
    "value",
    [
        {"prompt": "a"},
        {"prompt": "a", "number": 0},
        {"prompt": "a", "number": 1, "behind": -1},
        {"prompt": "a", "number": True},
        {"prompt": 1, "number": 1},
        {"prompt": "a", "number": 1, "answer": None},
        {"prompt": "a", "number": 1, "system": 5},
    ],
)
def test_what_is_no_turn(value: dict[str, object]) -> None:
    """An event that is no turn is refused."""
    with pytest.raises(ValueError, match="turn"):
        turn_from(value)


def test_replay() -> None:
    """A conversation is rebuilt from its events; a number stands once, and a turn follows one that stands above."""
    tree = TurnTree()
    for facts in (made(1).to_json(), made(2, 1).to_json(), made(3, 9).to_json(), {"number": 1}):
        tree.replay(facts)
    assert tree.head == 1
    assert tree.turns[3].behind == 0
    for wrong in (made(2).to_json(), {"number": 8}, {}):
        with pytest.raises(ValueError, match="turn"):
            tree.replay(wrong)
    tree.replay({"number": 0})
    assert tree.path() == []


def test_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more turns than the most, the oldest go that are beside the path, then those of the path."""
    monkeypatch.setattr(turns, "MAX_TURNS", 3)
    tree = grown(1, 2)
    tree.go_to(1)
    tree.add(made(3))
    tree.add(made(4))
    assert sorted(tree.turns) == [1, 3, 4]
    tree.add(made(5))
    assert sorted(tree.turns) == [3, 4, 5]
    assert [turn.number for turn in tree.path()] == [3, 4, 5]
