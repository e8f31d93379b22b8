"""The corpus: its mix of documents, their segments, and the phrases that they are made of."""

from __future__ import annotations

import json
import re
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from lmtool.core.types import ChatMessage, ChatPrompt, ToolCall
from lmtool.inference.text.chat_template import ChatTemplate
from lmtool.inference.tiny.path import MODEL_DIR
from tests.tiny.recipe.corpus import conversation, document, documents, one_turn, short_turn
from tests.tiny.recipe.document import CHAT_TEMPLATE, Chat, Plain, Turn
from tests.tiny.recipe.grading import CALL
from tests.tiny.recipe.phrasebook import FOLDER, Talk, items, lines, page, rows, table, talks, words
from tests.tiny.recipe.phrasing import (
    article,
    capitalised,
    fill,
    invent,
    join_list,
    sloppy,
    spin,
    unpunctuated,
)
from tests.tiny.recipe.tools import with_tools


class TestMix:
    """The mix of documents."""

    def test_a_seed_gives_the_same_documents(self) -> None:
        """The corpus is the same for the same seed, and another one for another."""
        first, again, other = (list(islice(documents(seed), 200)) for seed in (1, 1, 2))
        assert first == again
        assert first != other

    def test_documents_differ(self) -> None:
        """Nearly no document comes twice."""
        texts = ["".join(s.text for s in d.segments()) for d in islice(documents(3), 2000)]
        assert len(set(texts)) > 1700

    def test_stories_are_a_minor_part(self) -> None:
        """Stories take 30 % of the text at most, so that short answers are trained as well."""
        openings = tuple(opening[:9] for opening in lines("stories", "openings"))
        whole = stories = 0
        for one in islice(documents(4), 3000):
            replies = [one.text] if isinstance(one, Plain) else [turn.reply for turn in one.turns]
            whole += sum(len(segment.text) for segment in one.segments())
            stories += sum(len(reply) for reply in replies if reply.startswith(openings))
        assert stories < 0.3 * whole

    def test_chats_have_one_turn_or_more(self) -> None:
        """A document is plain text, a question with its answer, or a longer conversation."""
        samples = [document(Random(seed)) for seed in range(300)]
        assert any(isinstance(one, Plain) for one in samples)
        counts = {len(one.turns) for one in samples if isinstance(one, Chat)}
        assert {1, 2, 3} <= counts

    def test_turns_are_complete(self) -> None:
        """No theme leaves a slot or an alternative open in an answer."""
        for seed in range(1000):
            rng = Random(seed)
            for turn in (one_turn(rng), short_turn(rng), *conversation(rng)):
                assert turn.reply
                assert "[" not in turn.reply


CHAT = Chat([Turn("Hi", "Hello!"), Turn("Who are you?", "I am tiny.")], system="Be brief.")


TOOL_CHATS = [with_tools(Random(seed), short_turn, "Be brief." if seed % 2 else None) for seed in range(12)]


class TestSegments:
    """What is read and what is written."""

    def test_only_replies_are_trained(self) -> None:
        """The model learns to write replies and their end, and to read the rest."""
        assert [s.text for s in CHAT.segments() if s.is_target] == ["Hello!<|im_end|>", "I am tiny.<|im_end|>"]

    def test_plain_text_is_trained_with_its_end(self) -> None:
        """A plain text is trained whole; a leading end-of-text token is only read."""
        segments = list(Plain("Once.", leading_token=True).segments())
        assert [(s.text, s.is_target) for s in segments] == [("<|endoftext|>", False), ("Once.<|endoftext|>", True)]

    def test_question_stops_before_the_reply(self) -> None:
        """A question is everything up to the place where the assistant's last reply begins."""
        assert CHAT.prompt().endswith("<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n")

    @pytest.mark.parametrize("chat", [CHAT, *TOOL_CHATS], ids=lambda chat: f"{len(chat.turns)} turns")
    def test_chat_template_writes_the_same(self, chat: Chat) -> None:
        """The chat template and the training text agree to the letter, in transformers and here."""
        tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
        tokenizer.chat_template = CHAT_TEMPLATE
        messages, tools = _messages(chat), list(chat.tools) or None
        whole = "".join(segment.text for segment in chat.segments())
        assert tokenizer.apply_chat_template(messages, tools=tools, tokenize=False) == whole
        asked = messages[: max(at for at, one in enumerate(messages) if one["role"] == "assistant")]
        prompt = tokenizer.apply_chat_template(asked, tools=tools, tokenize=False, add_generation_prompt=True)
        assert prompt == chat.prompt()
        roles = {"user": "user", "assistant": "assistant", "system": "system", "tool": "tool"}
        own = [
            ChatMessage(
                roles[one["role"]], one["content"], tool_calls=tuple(_call(c) for c in one.get("tool_calls", ()))
            )
            for one in asked
        ]
        assert ChatTemplate(CHAT_TEMPLATE, {}).render(ChatPrompt(tuple(own), tools=tuple(chat.tools))) == prompt


def _messages(chat: Chat) -> list[dict]:
    """The conversation as clients send it."""
    messages = [] if chat.system is None else [{"role": "system", "content": chat.system}]
    for turn in chat.turns:
        result = re.fullmatch(r"<tool_response>\n(.*)\n</tool_response>", turn.prompt, re.DOTALL)
        messages.append({"role": "tool", "content": result[1]} if result else {"role": "user", "content": turn.prompt})
        call = CALL.fullmatch(turn.reply)
        calls = {"tool_calls": [{"type": "function", "function": json.loads(call[1])}]} if call else {}
        messages.append({"role": "assistant", "content": "" if call else turn.reply, **calls})
    return messages


def _call(call: dict) -> ToolCall:
    return ToolCall("call_1", call["function"]["name"], json.dumps(call["function"]["arguments"], ensure_ascii=False))


PAGES = sorted(file.stem for file in FOLDER.glob("*.txt"))
EXAMPLE = """# About it.

== one
x y
foo_bar

== two
a b, c: d,
e

== three
? hi
? hey
! hello

? bye
! see you
"""


@pytest.fixture
def example(tmp_path, monkeypatch) -> str:
    (tmp_path / "example.txt").write_text(EXAMPLE)
    monkeypatch.setattr("tests.tiny.recipe.phrasebook.FOLDER", tmp_path)
    return "example"


class TestPages:
    """Pages of phrases."""

    def test_sections_are_read_as_what_they_are(self, example: str) -> None:
        """A section is lines, words, items, a table, rows or talks, as its theme asks."""
        assert lines(example, "one") == ("x y", "foo_bar")
        assert words(example, "one") == ("x", "y", "foo bar")
        assert items(example, "two") == ("a b", "c: d", "e")
        assert table(example, "two")[1] == ("c", "d")
        assert rows(example, "two")[0] == ("a b, c", "d,")
        assert talks(example, "three") == (Talk(("hi", "hey"), ("hello",)), Talk(("bye",), ("see you",)))

    @pytest.mark.parametrize("name", PAGES)
    def test_pages_have_full_sections(self, name: str) -> None:
        """Every page opens with a comment, and none of its sections is empty."""
        assert (FOLDER / f"{name}.txt").read_text(encoding="utf-8").startswith("# ")
        assert page(name)
        assert all(page(name).values())


SEEDS = st.integers(0, 2**32)


class TestPhrasing:
    """How people type."""

    @given(SEEDS)
    def test_spin_takes_one_alternative(self, seed: int) -> None:
        """Each `[this|that]` becomes one of its alternatives, an empty one included."""
        assert spin(Random(seed), "[a|b] c[| d]") in {"a c", "b c", "a c d", "b c d"}

    def test_fill_puts_in_slots_and_mends_articles(self) -> None:
        """Slots are filled, and `a` becomes `an` before a vowel that is spoken as one."""
        assert fill(Random(0), ("A {x} and a {y}",), x="owl", y="unicorn") == "An owl and a unicorn"

    @given(SEEDS)
    def test_invented_words_are_words(self, seed: int) -> None:
        """A made-up word is lower-case letters, three at least."""
        word = invent(Random(seed))
        assert word.isalpha()
        assert word.islower()
        assert len(word) >= 3

    @given(SEEDS, st.text("ab 7.?!", min_size=1))
    def test_sloppy_never_fails_nor_changes_numbers(self, seed: int, text: str) -> None:
        """Hurried typing leaves every digit where it was."""
        assert [c for c in sloppy(Random(seed), text) if c.isdigit()] == [c for c in text if c.isdigit()]

    @given(SEEDS)
    def test_unpunctuated_changes_only_the_end(self, seed: int) -> None:
        """Only the last full stop or question mark comes and goes."""
        assert unpunctuated(Random(seed), "My name is Bo.").startswith("My name is Bo")

    def test_english_forms(self) -> None:
        """Articles, capitals and lists are as English writes them."""
        assert article("elf") == "an elf"
        assert article("fox") == "a fox"
        assert capitalised("polar Bear") == "Polar Bear"
        assert join_list(["one"]) == "one"
        assert join_list(["one", "two", "three"]) == "one, two and three"
