"""The first prompts and the rules by which answers to them are graded."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from tests.tiny.recipe.corpus import documents
from tests.tiny.recipe.document import Chat
from tests.tiny.recipe.grading import (
    KINDS,
    Prompt,
    Reply,
    fault,
    first_prompts,
    grade,
    is_true,
    loops,
    reserved,
    shares,
    two_hundred_records,
    two_hundred_stories,
)

STORY = (
    "Once upon a time there was a cat named Tom who lost her shoe. " * 2
    + "She looked for it all day, and found it at last."
)
CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Rome"}}\n</tool_call>'
WANTED_CALL = {"name": "get_time", "arguments": {"city": "Rome"}}
ANIMALS = (3, frozenset({"cat", "dog", "owl", "fox"}))
REFUSAL = "I do not know that. I can only tell you a story or answer an easy question."
CASES = [
    ({"story": ["cat", "shoe"]}, STORY, [STORY.replace("shoe", "hat"), "The cat lost her shoe.", STORY[:-1], REFUSAL]),
    ({"numbers": [1, 2, 3]}, "1, 2, 3", ["1, 2, 3, 4", "1, 3, 2", "one, two, three", REFUSAL]),
    ({"items": ANIMALS}, "Cat, dog and owl.", ["Cat, dog and dog.", "Cat and dog.", "Cat, dog and lamp.", REFUSAL]),
    ({"json": {"a": 1}}, '{"a": 1}', ['{"a": 2}', '{"a": "1"}', 'Here: {"a": 1}', '{"a": 1', REFUSAL]),
    ({"echo": "blue moon"}, '"Blue moon."', ["blue", "blue moon it is", REFUSAL]),
    ({"number": -5}, "3 - 8 = -5", ["3 - 8 = 5", "5", "3 - 8", "-5 or 7", REFUSAL]),
    ({"number": 9}, "4 + 5 = 9", ["4 + 4 = 9", "3 + 5 = 9"]),
    ({"number": 9, "refusal": True}, REFUSAL, ["2 + 3 = 5"]),
    ({"refusal": True}, REFUSAL, ["The capital of Narnia is Sofia."]),
    ({"says": r"\bParis\b"}, "It is paris.", ["It is Rome.", REFUSAL]),
    ({"says": "name", "never": "don't"}, "Your name is Bo.", ["I don't know your name."]),
    ({"call": WANTED_CALL}, CALL, [CALL + CALL, CALL.replace("Rome", "Oslo"), CALL[:-12], REFUSAL]),
]


class TestRules:
    """Each rule accepts a good answer and nothing else."""

    @pytest.mark.parametrize(
        ("rules", "good", "bad"), CASES, ids=lambda case: "" if isinstance(case, list) else str(case)[:20]
    )
    def test_a_rule_accepts_good_answers_only(self, rules: dict[str, object], good: str, bad: list[str]) -> None:
        """A good answer has no fault; a wrong one, and a refusal where an answer is due, has one."""
        prompt = Prompt("any", ("?",), rules)
        assert not fault(prompt, [Reply(good)])
        assert all(fault(prompt, [Reply(text)]) for text in bad)

    def test_what_the_answer_before_says_is_recalled(self) -> None:
        """A follow-up is graded by what the model itself has said."""
        prompt = Prompt("any", ("a story", "his name?"), {"recalls": r"named (\w+)"})
        assert not fault(prompt, [Reply("A fox named Bo."), Reply("His name was Bo.")])
        assert fault(prompt, [Reply("A fox named Bo."), Reply("His name was Mia.")])
        assert fault(prompt, [Reply("A fox."), Reply("His name was Bo.")])

    def test_whatever_is_asked_an_answer_ends_and_does_not_loop(self) -> None:
        """An answer that is cut off, says the same again and again or has a wrong sum in it is never good."""
        prompt = Prompt("any", ("?",), {"says": "."})
        assert not fault(prompt, [Reply("Good.")])
        assert fault(prompt, [Reply("Good.", ended=False)]) == "unfinished"
        assert fault(prompt, [Reply("and so on and on " * 4)]) == "loop"
        assert fault(prompt, [Reply("2 + 2 = 5")]) == "wrong sum"
        assert loops("no no no no")
        assert not loops("1, 1, 1, 1, 1")

    @pytest.mark.parametrize(
        ("left", "right", "true"),
        [("2 + 3 * 4", "14", True), ("-2 - 3", "-5", True), ("2 x 3", "6", True), ("2 - 3", "1", False)],
    )
    def test_sums_are_checked(self, left: str, right: str, *, true: bool) -> None:
        """Products come before sums and differences."""
        assert is_true(left, right) is true


class TestPrompts:
    """The prompts."""

    def test_there_are_120_first_prompts_of_every_kind(self) -> None:
        """120 first prompts, 200 stories and 200 records; every prompt has a rule, and none stands twice."""
        assert len({(*prompt.asks, str(prompt.system)) for prompt in first_prompts()}) == 120
        assert {prompt.kind for prompt in first_prompts()} == set(KINDS)
        assert len(two_hundred_stories()) == len(two_hundred_records()) == 200
        assert all(prompt.rules for prompt in (*first_prompts(), *two_hundred_stories(), *two_hundred_records()))

    @pytest.mark.parametrize("text", [REFUSAL, "", "Hello! How can I help you?", STORY, '{"name": "Bob"}'])
    def test_one_answer_to_everything_is_not_good(self, text: str) -> None:
        """A constant answer, a refusal above all, does not get a quarter of the points."""
        graded = grade(first_prompts(), lambda conversations: [Reply(text) for _ in conversations])
        assert shares(graded)["all"] < 0.25

    def test_a_conversation_has_the_models_own_answers(self) -> None:
        """A follow-up is asked behind the model's own first answer."""
        prompt = Prompt("any", ("one", "two"), {"says": "."}, system="Be kind.")
        asked = []
        grade([prompt], lambda conversations: asked.extend(conversations) or [Reply("yes") for _ in conversations])
        assert [[(one["role"], one["content"]) for one in conversation.messages] for conversation in asked] == [
            [("system", "Be kind."), ("user", "one")],
            [("system", "Be kind."), ("user", "one"), ("assistant", "yes"), ("user", "two")],
        ]

    def test_shares_are_by_kind(self) -> None:
        """The share of good answers is counted for each kind and for all."""
        prompts = [
            Prompt("a", ("x",), {"echo": "x"}),
            Prompt("a", ("y",), {"echo": "x"}),
            Prompt("b", ("z",), {"echo": "z"}),
        ]
        graded = grade(prompts, lambda conversations: [Reply(one.messages[-1]["content"]) for one in conversations])
        assert shares(graded) == {"a": 0.5, "b": 1.0, "all": 2 / 3}


class TestCorpus:
    """What is graded is not trained on."""

    def test_no_first_prompt_is_in_the_corpus(self) -> None:
        """No question of the corpus is one that is graded, whatever its case and punctuation."""
        chats = [one for one in islice(documents(11), 4000) if isinstance(one, Chat)]
        assert not [chat for chat in chats if reserved([turn.prompt for turn in chat.turns])]

    def test_a_reserved_prompt_is_found(self) -> None:
        """Case and punctuation do not hide a first prompt; of a conversation all texts in a row are reserved."""
        assert reserved(["COUNT TO TEN!!"])
        assert reserved(["Hi", "What colour is snow", "and coal"])
        assert not reserved(["What colour is snow?", "Hi", "and coal?"])
        kinds = Counter(prompt.kind for prompt in first_prompts() if reserved(prompt.asks))
        assert kinds.total() == 120
