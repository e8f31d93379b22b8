"""The mix of documents."""

from __future__ import annotations

from itertools import islice
from random import Random

from lmtool.tiny.corpus import conversation, document, documents, one_turn, short_turn
from lmtool.tiny.document import Chat, Plain
from lmtool.tiny.stories import lines


def test_a_seed_gives_the_same_documents() -> None:
    """The corpus is the same for the same seed, and another one for another."""
    first, again, other = (list(islice(documents(seed), 200)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_documents_differ() -> None:
    """Nearly no document comes twice."""
    texts = ["".join(s.text for s in d.segments()) for d in islice(documents(3), 2000)]
    assert len(set(texts)) > 1700


def test_stories_are_a_minor_part() -> None:
    """Stories take 30 % of the text at most, so that short answers are learnt as well."""
    openings = tuple(opening[:9] for opening in lines("stories", "openings"))
    whole = stories = 0
    for made in islice(documents(4), 3000):
        replies = [made.text] if isinstance(made, Plain) else [turn.reply for turn in made.turns]
        whole += sum(len(segment.text) for segment in made.segments())
        stories += sum(len(reply) for reply in replies if reply.startswith(openings))
    assert stories < 0.3 * whole


def test_chats_have_one_turn_or_more() -> None:
    """A document is plain text, a question with its answer, or a longer conversation."""
    made = [document(Random(seed)) for seed in range(300)]
    assert any(isinstance(one, Plain) for one in made)
    counts = {len(one.turns) for one in made if isinstance(one, Chat)}
    assert {1, 2, 3} <= counts


def test_turns_are_complete() -> None:
    """No theme leaves a slot or an alternative open in an answer."""
    for seed in range(1000):
        rng = Random(seed)
        for turn in (one_turn(rng), short_turn(rng), *conversation(rng)):
            assert turn.reply
            assert "[" not in turn.reply
