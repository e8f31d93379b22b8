"""Checks on answers that are made by hand: what they find, and what they let pass."""

from __future__ import annotations

from dataclasses import replace

from lmtool.measure.audit.checks import CHECKS, KIND, NAMES, judge, parts_of
from lmtool.measure.audit.comparison import difference
from lmtool.measure.audit.evidence import Answer, Choice, Count, Evidence, Question, Token
from lmtool.measure.audit.interview import PARTS

QUESTION = Question("Hi", 2)
ROW = (Token("a", -0.7, (("a", -0.7), ("b", -0.75))), Token("c", -0.5, (("c", -0.5), ("d", -1.5))))


def evidence(**answers: Answer) -> Evidence:
    """Evidence of these answers, `greedy_0` for `greedy/0`."""
    found = Evidence("completions", 2)
    for name, answer in answers.items():
        found.add(name.replace("_", "/"), [answer])
    return found


def answer(*tokens: Token, number: int = 1, reason: str = "length", text: str = "ac") -> Answer:
    """An answer of these tokens."""
    return Answer(QUESTION, number, (Choice(tokens, text, reason),), count=Count(1, len(tokens), 1 + len(tokens)))


def test_every_check_says_what_holds_and_what_it_needs() -> None:
    """Each has a sentence, and parts of the interview that exist; without evidence none finds a breach."""
    assert all(check.rule.endswith(".") and set(check.needs.split()) <= set(PARTS) for check in CHECKS)
    assert parts_of(("repeat",)) == {"alone"}
    assert parts_of((KIND,)) > {"temperatures", "penalties"}
    assert not [one for one in judge(Evidence("chat", 3)).values() if one.verdict == "breach"]
    assert tuple(judge(Evidence("chat", 3))) == tuple(sorted(NAMES, key=list(judge(Evidence("chat", 3))).index))


def test_two_equals_may_change_places() -> None:
    """Where two tokens are about equally likely rounding may choose; behind that nothing is compared."""
    other = (replace(ROW[0], name="b", logprob=-0.75), Token("z", -9.0))
    assert difference(ROW, other, 0.1).tie
    assert difference(ROW, other, 0.1).sentence(0.1) == ""
    assert difference(ROW, other, 0.01).sentence(0.01) == "the tokens part at token 0"
    assert difference(ROW, ROW[:1], 0.1).sentence(0.1) == "one is 1 tokens shorter"


def test_how_far_off() -> None:
    """A finding has the greatest deviation, within the tolerance and beyond it, and the exchanges that show it."""
    near = replace(ROW[1], logprob=-0.54)
    found = judge(evidence(greedy_0=answer(*ROW), again_0=answer(ROW[0], near, number=7)), 0.1)["repeat"]
    assert (found.verdict, round(found.off or 0, 3)) == ("pass", 0.04)
    found = judge(evidence(greedy_0=answer(*ROW), again_0=answer(ROW[0], near, number=7)), 0.01)["repeat"]
    assert (found.verdict, found.exchanges) == ("breach", (1, 7))
    assert found.sentence == "asked again: logprobs differ by 0.0400 nats at token 1"


def test_what_was_not_asked_is_said() -> None:
    """A refusal in the server's words, or that the time was over."""
    found = evidence(greedy_0=answer(*ROW), echo_0=Answer(QUESTION, 2, refusal="echo? no"))
    found.omitted["choices"] = "5 s were over before it could be asked"
    findings = judge(found)
    assert (findings["echo"].verdict, findings["echo"].sentence) == ("not offered", "echo? no")
    assert findings["n"].sentence == "5 s were over before it could be asked"


def test_counts_and_endings() -> None:
    """Eos may be counted or not; an answer that is cut has all its tokens, and ends once."""
    good = answer(*ROW)
    assert judge(evidence(greedy_0=good))["usage"].verdict == "pass"
    assert judge(evidence(greedy_0=replace(good, count=Count(1, 3, 4))))["usage"].verdict == "breach"
    eos = answer(ROW[0], reason="stop", text="a")
    assert judge(evidence(greedy_0=replace(eos, count=Count(1, 2, 3))))["usage"].verdict == "pass"
    assert judge(evidence(greedy_0=replace(eos, count=Count(1, 1, 3))))["usage"].verdict == "breach"
    twice = replace(good, choices=(replace(good.only, endings=2),))
    assert "sent 2 times" in judge(evidence(greedy_0=twice))["finish_reason"].sentence


def test_where_the_chosen_one_stands() -> None:
    """Alternatives are in order but for the chosen one, which some servers put first and others last."""
    alternatives = (("c", -3.0), ("a", -0.5), ("b", -1.0))
    for row, verdict in (
        (Token("c", -3.0, alternatives), "pass"),
        (Token("c", -3.0, (*alternatives[1:], alternatives[0])), "pass"),
        (Token("a", -0.5, alternatives), "breach"),
    ):
        found = evidence(greedy_0=answer(row))
        found.width = 3
        assert judge(found)["alternatives"].verdict == verdict


def test_bytes_that_are_no_text() -> None:
    """In a text they are replaced, however many signs that takes; a letter more or less is another text."""
    row = (Token("a", -0.1), Token(b"\xe2\x82", -0.1), Token(b"\xff", -0.1))
    assert judge(evidence(names_0=answer(*row, text="a\ufffd")))["text"].verdict == "pass"
    assert judge(evidence(names_0=answer(*row, text="a\ufffdb")))["text"].verdict == "breach"
