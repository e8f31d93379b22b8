"""Scripts as text, and as steps."""

from __future__ import annotations

import pytest

from lmtool.measure.conformance.case_script import CLIENT_STEPS, SERVER_STEPS, ScriptError, ids, parse, words


def test_lines_become_steps() -> None:
    """A verb and the rest; blank lines mean nothing; `wait end` is one verb."""
    steps = parse("> GENERATE {}\n\n  wait end 1 2\nfence\n", SERVER_STEPS)
    assert [(step.verb, step.rest) for step in steps] == [(">", "GENERATE {}"), ("wait end", "1 2"), ("fence", "")]
    assert str(steps[1]) == "wait end 1 2"


@pytest.mark.parametrize("line", ["shout", "wait forever", ">", "fence now", "< TOKEN []", "wait end"])
def test_what_is_no_step(line: str) -> None:
    """An unknown verb, or one with too little or too much behind it, is refused."""
    with pytest.raises(ScriptError, match=line.partition(" ")[0]):
        parse(line, SERVER_STEPS)


def test_each_role_has_its_steps() -> None:
    """Only the suite's server sends with `<`."""
    assert parse("< TOKEN []\ndrop", CLIENT_STEPS)


def test_variables_are_filled() -> None:
    """`$name` and `$name(argument)` are replaced, also inside of strings."""
    (step,) = parse('> X {"a": $prompt, "$eos": 1$pad(3)}', SERVER_STEPS)
    assert step.variables == {"prompt", "eos", "pad"}
    assert step.filled(lambda name, argument: f"<{name}{argument}>") == 'X {"a": <prompt>, "<eos>": 1<pad3>}'


def test_ids_are_json() -> None:
    """Ids of a `wait` are JSON values; 1.0 stays a float."""
    found = ids('1 1.0 "a b" {"x": 1}')
    assert found == [1, 1.0, "a b", {"x": 1}]
    assert [type(one) for one in found] == [int, float, str, dict]
    with pytest.raises(ScriptError, match="no stream ids"):
        ids("one")


def test_words() -> None:
    """Quotes keep words together."""
    assert words('page "Origin: http://x"') == ["page", "Origin: http://x"]
