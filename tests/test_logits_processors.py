"""Logits processors of other packages: named, made, applied."""

from __future__ import annotations

import math

import pytest

from lmtool.errors import RequestError
from lmtool.logits_processors import MAX_BYTES, Processors, installed, processors_from, written
from lmtool.types import NamedProcessor

torch = pytest.importorskip("torch")


def named(name, **arguments):
    return NamedProcessor(name, arguments)


def test_what_is_read_is_written_again():
    """Arguments may be left out."""
    given = [{"name": "a", "args": {"x": [1, {"y": None}]}}, {"name": "b", "args": {}}]
    assert written(processors_from(given)) == given
    assert processors_from([{"name": "b"}, {"name": "c", "args": None}]) == (named("b"), named("c"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a", "expected a list"),
        ([{"name": "a"}] * 9, "at most 8"),
        ([{"args": {}}], r"logits_processors\[0\]"),
        ([{"name": "a"}, {"name": "b", "arguments": {}}], r"\[1\] has 'arguments'"),
        ([{"name": "a", "args": 5}], "args is 5"),
        ([{"name": "a", "args": {"x": "y" * MAX_BYTES}}], "bytes"),
    ],
)
def test_what_names_none(given, message):
    """Refused with the place."""
    with pytest.raises(RequestError, match=message):
        processors_from(given)


def test_a_name_that_is_not_installed(plugin):
    """Told with those that are."""
    assert set(installed()) >= {"only", "louder", "broken", "narrow"}
    with pytest.raises(RequestError, match="there is no logits processor 'loud'") as raised:
        Processors([named("loud")])
    assert "louder" in raised.value.hints[0]
    assert "lmtool.logits_processors" in raised.value.hints[1]


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (named("only", token="x"), "refuses its arguments: TypeError: token is an id"),
        (named("only"), "refuses its arguments"),
        (named("absent"), "cannot be imported"),
    ],
)
def test_what_cannot_be_made(plugin, one, message):
    """Is this request's fault, and told."""
    with pytest.raises(RequestError, match=message):
        Processors([one])


def test_one_after_the_other_within_what_is_allowed(plugin):
    """The second sees what the first gave; what was -inf stays -inf."""
    processors = Processors([named("louder", ids=[3, 4]), named("louder", ids=[2])])
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0, -math.inf])
    processors.apply([], logits)
    assert logits.tolist() == [0.0, 1.0, 1002.0, 1003.0, -math.inf]
    processors.apply([3], logits)
    assert logits.tolist() == [0.0, 1.0, 1002.0, 1003.0, -math.inf]
    assert processors.error is None


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (named("broken"), "broken failed: ValueError: no more"),
        (named("narrow"), "narrow gave"),
        (named("only", token=4), "left no token"),
    ],
)
def test_what_goes_wrong_stays_inside(plugin, one, message):
    """An error that is kept; the logits stay as they were."""
    processors = Processors([one])
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0, -math.inf])
    for _ in range(2):
        processors.apply([1, 2], logits)
        assert message in str(processors.error)
        assert logits.tolist() == [0.0, 1.0, 2.0, 3.0, -math.inf]


def applied(processor, *tokens, size=6):
    """The ids that may come behind these."""
    processors, logits = Processors([processor]), torch.zeros(size)
    assert processors.bars_ids
    processors.apply(list(tokens), logits)
    assert processors.error is None
    return [token for token in range(size) if logits[token] == 0]


def test_allowed_token_ids():
    """No others may come, whatever came before; the logits of those stay."""
    assert applied(named("allowed_token_ids", ids=[4, 1])) == [1, 4]
    assert applied(named("allowed_token_ids", ids=[4, 1]), 1, 4) == [1, 4]


def test_bad_words():
    """The last id of a sequence may not come behind its others; one of a single id never may."""
    bad = named("bad_words", sequences=[[5], [1, 2], [1, 1, 3]])
    assert applied(bad) == [0, 1, 2, 3, 4]
    assert applied(bad, 1) == [0, 1, 3, 4]
    assert applied(bad, 2) == [0, 1, 2, 3, 4]
    assert applied(bad, 1, 1) == [0, 1, 4]
    assert applied(bad, 1, 1, 3) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "bad",
    [
        named("allowed_token_ids", ids=[]),
        named("allowed_token_ids", ids="1"),
        named("allowed_token_ids", ids=[-1]),
        named("bad_words", sequences=[[]]),
        named("bad_words", sequences=[1]),
        named("bad_words", words=["a"]),
    ],
)
def test_arguments_of_our_own(bad):
    """Anything else than ids is refused."""
    with pytest.raises(RequestError, match=f"the logits processor {bad.name} refuses its arguments"):
        Processors([bad])


def test_our_own_are_installed():
    """They can be named as any other; one of another package bars no ids for ever."""
    assert {"allowed_token_ids", "bad_words"} <= set(installed())
    assert not Processors([]).bars_ids
