"""Stories and verses are about what was asked for."""

from __future__ import annotations

from random import Random

from lmtool.tiny.stories import poem_turn, sentence, sentence_turn, story, story_turn


def test_story_is_about_its_topics() -> None:
    """The first topic is the hero, a second one the friend, a capitalised one the hero's name."""
    for seed in range(50):
        assert "blorp" in story(Random(seed), ["blorp"])
        assert "Zandra" in story(Random(seed), ["Zandra"])
    assert any("pirate" in story(Random(seed), ["fox", "pirate"]) for seed in range(20))


def test_story_is_short_and_whole() -> None:
    """A story has 40 to 140 words, ends with a full stop, and has no slot left open."""
    for seed in range(200):
        text = story_turn(Random(seed)).reply
        assert 40 <= len(text.split()) <= 140
        assert text.endswith((".", "!"))
        assert not set("{}[]|") & set(text)


def test_verses_have_lines() -> None:
    """A poem has four lines, a haiku three."""
    for seed in range(100):
        turn = poem_turn(Random(seed))
        assert turn.reply.count("\n") == (2 if "haiku" in turn.prompt.lower() else 3) or "aiku" not in turn.prompt


def test_sentences_use_the_word() -> None:
    """A sentence about a word has the word in it."""
    assert "lamp" in sentence(Random(0), "lamp")
    assert sentence_turn(Random(0)).reply.endswith(".")
