"""Ids explained once, before the event that names them."""

from __future__ import annotations

from lmtool.trace.events import Frame, Open, Parsed, Vocab
from lmtool.trace.vocabulary import Explainer
from tests.trace.conftest import generate, token, tokens


def spell(token: int) -> bytes:
    return b"\xf0\x9f" if token == 9 else f"<{token}>".encode()


def test_ids_of_prompts_tokens_and_alternatives_are_named() -> None:
    """A request names the ids of its prompt, an output its token and the alternatives."""
    explainer = Explainer(spell)
    assert explainer.new_ids(generate(0.0)) == [5, 6, 7]
    assert explainer.new_ids(tokens(0.1, token(3, top_logprobs={"3": -0.1, "8": -2.0}))) == [3, 8]


def test_an_id_is_explained_once() -> None:
    """What a vocabulary event has told is new no more."""
    explainer = Explainer(spell)
    assert explainer.vocab(0.5, [5, 9]) == Vocab(0.5, 0, {5: "<5>", 9: b"\xf0\x9f"})
    assert explainer.new_ids(generate(0.6)) == [6, 7]
    assert explainer.vocab(0.7, []) is None


def test_other_events_name_nothing() -> None:
    """Events without token ids, and texts in place of ids, name none."""
    explainer = Explainer(spell)
    assert explainer.new_ids(Open(0.0, 1)) == []
    assert explainer.new_ids(Frame(0.0, ">", 1, Parsed("GENERATE", {"prompt": "Hi"}, "py"))) == []
    assert explainer.new_ids(Frame(0.0, "<", 1, "TOKEN nonsense")) == []
