"""Frozen dataclasses that are made fast are frozen dataclasses all the same."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from lmtool.core.frozen import made_fast


@dataclass(frozen=True, slots=True)
class Plain:
    """One as Python makes it."""

    first: int
    second: str = "b"


@made_fast
@dataclass(frozen=True, slots=True)
class Fast:
    """One of ours."""

    first: int
    second: str = "b"


def test_it_is_what_it_was() -> None:
    """Fields, defaults, signature, comparison, copies, its hash and its text are those of the dataclass."""
    one = Fast(1)
    assert type(one) is Fast
    assert (one.first, one.second) == (1, "b")
    assert one == Fast(first=1, second="b") != Fast(1, "c")
    assert replace(one, first=2) == Fast(2)
    assert pickle.loads(pickle.dumps(one)) == one
    assert (hash(one), repr(one)) == (hash(Plain(1)), repr(Plain(1)).replace("Plain", "Fast"))
    assert inspect.signature(Fast) == inspect.signature(Plain)


def test_it_is_frozen() -> None:
    """No field changes, and no other can be set; nor does anything of a failed call stay behind."""
    one = Fast(1)
    for name in ("first", "third"):
        with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
            setattr(one, name, 2)
    with pytest.raises(TypeError, match="third"):
        Fast(1, third=3)  # type: ignore[call-arg]
    assert one == Fast(1)
