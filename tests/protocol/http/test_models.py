"""What is known of prompts that begin alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.types import TokenOutput
from lmtool.protocol.http.models import ScoredPrompts

IDS = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


def outputs(ids: tuple[int, ...]) -> list[TokenOutput]:
    return [TokenOutput(0, token, -float(place)) for place, token in enumerate(ids)]


@given(st.lists(IDS, min_size=1, max_size=6), IDS)
def test_the_longest_beginning(known: list[tuple[int, ...]], ids: tuple[int, ...]) -> None:
    """As much as any prompt has in common with this one, and the outputs of just that."""
    scored = ScoredPrompts()
    for one in known:
        scored.put(("m", "", 1), one, outputs(one))
    shared = max(next((n for n in range(min(len(one), len(ids)), 0, -1) if one[:n] == ids[:n]), 0) for one in known)
    assert scored.beginning(("m", "", 1), ids) == outputs(ids[:shared])


def test_models_salts_and_alternatives_are_kept_apart() -> None:
    """What another model said, to requests of another salt, or with fewer alternatives, is not known."""
    scored = ScoredPrompts()
    scored.put(("m", "", 1), (1, 2), outputs((1, 2)))
    assert scored.beginning(("n", "", 1), (1, 2)) == []
    assert scored.beginning(("m", "", 2), (1, 2)) == []
    assert scored.beginning(("m", "mine", 1), (1, 2)) == []


def test_it_is_bounded() -> None:
    """In prompts, and in tokens with their alternatives."""
    scored = ScoredPrompts(max_prompts=2)
    for first in range(3):
        scored.put(("m", "", 1), (first,), outputs((first,)))
    assert [len(scored.beginning(("m", "", 1), (first,))) for first in range(3)] == [0, 1, 1]
    small = ScoredPrompts(max_entries=10)
    small.put(("m", "", 1), (1,) * 5, outputs((1,) * 5))
    small.put(("m", "", 1), (2,) * 3, outputs((2,) * 3))
    assert [len(small.beginning(("m", "", 1), (first,) * 5)) for first in (1, 2)] == [0, 3]
