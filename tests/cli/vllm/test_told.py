"""What the engine's process tells the worker, over a real socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.cli.vllm.told import Step, Teller, Told, error_of, parts_of
from lmtool.errors import ConstraintError, ConstraintTooComplexError, LmtoolError, ServerError


@pytest.fixture
def teller(tmp_path: Path):
    made = Teller(tmp_path / "told")
    yield made
    made.close()


@pytest.fixture
async def told(tmp_path: Path):
    made = Told(tmp_path / "told")
    yield made
    made.close()


async def test_what_was_told_is_there_at_once(told: Told, teller: Teller) -> None:
    """Before anyone waits for it, many streams together, each step once."""
    for name in ("a", "b"):
        told.expect(name)
    steps = [Step(name, place, 0.5, ((3, -1.0), (4, -2.0))) for name in ("a", "b", "c") for place in range(9)]
    assert teller.tell(steps)
    assert told.step("a", 8) == steps[8]
    assert told.step("b", 0) == steps[9]
    for name, place in (("a", 8), ("c", 0)):
        with pytest.raises(ServerError, match="did not tell"):
            told.step(name, place)
    told.forget("a")
    with pytest.raises(ServerError):
        told.step("a", 1)


async def test_an_error_is_raised_where_it_was_told(told: Told, teller: Teller) -> None:
    """As the same kind of error, with its hints."""
    told.expect("a")
    assert teller.tell([Step("a", 0, error=("constraint_too_complex", "too much", "less"))])
    with pytest.raises(ConstraintTooComplexError) as raised:
        told.step("a", 0)
    assert (raised.value.message, raised.value.hints) == ("too much", ("less",))


@pytest.mark.parametrize("error", [ConstraintError("bad", "be good"), ServerError("broken")])
def test_errors_travel(error: LmtoolError) -> None:
    """By their code."""
    back = error_of(parts_of(error))
    assert (type(back), back.message, back.hints) == (type(error), error.message, error.hints)


def test_nobody_there(tmp_path: Path) -> None:
    """Said, not raised: the engine goes on."""
    assert not Teller(tmp_path / "none").tell([Step("a", 0)])


async def test_an_engine_that_ends(told: Told, tmp_path: Path) -> None:
    """Is forgotten, and another one heard."""
    told.expect("a")
    first, second = Teller(tmp_path / "told"), Teller(tmp_path / "told")
    assert first.tell([Step("a", 0)])
    assert told.step("a", 0).place == 0
    first.close()
    assert second.tell([Step("a", 1)])
    told._accept()
    assert told.step("a", 1).place == 1
    second.close()
