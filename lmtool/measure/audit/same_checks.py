"""Checks that two answers are the same: again, streamed, in a crowd, scored, echoed, several at once, by one seed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lmtool.measure.audit.comparison import difference, frame_difference
from lmtool.measure.audit.evidence import breach, not_offered, passes
from lmtool.measure.audit.frequencies import RATE

if TYPE_CHECKING:
    from lmtool.measure.audit.evidence import Answer, Evidence, Finding, Token

_DISTINCT = math.log(RATE)
"""Logarithm of the probability below which copies are no coincidence."""


def _pairs(evidence: Evidence, first: str, second: str, tolerance: float, *, frame: bool, what: str) -> Finding:
    """Compare all pairs of answers. frame: whether text, ending and ids must be the same too."""
    pairs = evidence.pairs(first, second)
    if not pairs:
        return not_offered(evidence.reason(second) if evidence.all(first) else evidence.reason(first))
    worst, ties, positions = 0.0, 0, 0
    for _, one, other in pairs:
        found = difference(one.only.tokens, other.only.tokens, tolerance)
        problem = found.sentence(tolerance)
        if frame and not problem and found.parting is None:
            problem = frame_difference(one.only, other.only)
        if problem:
            return breach(f"{what}: {problem}", one, other, off=found.off)
        worst, ties, positions = max(worst, found.off), ties + found.tie, positions + found.compared
    if not positions:
        texts = frame and all(one.only.text is not None for _, one, _ in pairs)
        return (
            passes("the texts are the same; there are no logprobs") if texts else not_offered("there are no logprobs")
        )
    more = f"; {ties} times rounding chose between equals" if ties else ""
    return passes(f"within {worst:.1e} nats at {positions} tokens{more}", worst)


def check_repeat(evidence: Evidence, tolerance: float) -> Finding:
    """A greedy answer is the same when it is asked for again."""
    return _pairs(evidence, "greedy", "again", tolerance, frame=True, what="asked again")


def check_fewer_alternatives(evidence: Evidence, tolerance: float) -> Finding:
    """Logprobs do not depend on the number of alternatives that are asked for."""
    return _pairs(evidence, "greedy", "fewer", tolerance, frame=True, what="with fewer alternatives")


def check_stream(evidence: Evidence, tolerance: float) -> Finding:
    """A streamed answer is the whole one in pieces."""
    return _pairs(evidence, "greedy", "stream", tolerance, frame=True, what="streamed and whole")


def check_concurrency(evidence: Evidence, tolerance: float) -> Finding:
    """Neighbours do not change an answer."""
    return _pairs(evidence, "greedy", "crowd", tolerance, frame=False, what="alone and in a crowd")


def check_prompt_logprobs(evidence: Evidence, tolerance: float) -> Finding:
    """Tokens that were generated have the same logprobs when they are scored as a prompt."""
    found = [(one, other) for name in ("greedy", "sampled") for _, one, other in evidence.pairs(name, "scored")]
    if not found:
        return not_offered(evidence.reason("scored"))
    worst, count = 0.0, 0
    for answer, scored in found:
        if evidence.kind == "processed" and answer.question.temperature != 1.0:
            continue  # a greedy distribution is no model's
        for at, (one, other) in enumerate(zip(answer.only.tokens, scored.only.tokens, strict=False)):
            if one.logprob is None or other.logprob is None:
                return breach(f"token {at} has a logprob in one of both only", answer, scored)
            off = abs(one.logprob - other.logprob)
            if off > tolerance:
                return breach(
                    f"token {at} has {one.logprob:.4f} generated and {other.logprob:.4f} scored",
                    answer,
                    scored,
                    off=off,
                )
            worst, count = max(worst, off), count + 1
    return passes(f"within {worst:.1e} nats at {count} tokens", worst)


def check_speculation(evidence: Evidence, tolerance: float) -> Finding:
    """A text that repeats itself, where drafts are likely, has the logprobs that it has without them: scored."""
    pairs = [(one, other) for name, one, other in evidence.pairs("greedy", "scored") if name == "2"]
    if not pairs or evidence.kind == "processed":
        return not_offered(
            "no request turns it off, and " + (evidence.reason("scored") if not pairs else "logprobs are processed")
        )
    ((answer, scored),) = pairs
    found = difference(answer.only.tokens, scored.only.tokens, tolerance)
    if problem := found.sentence(tolerance):
        return breach(f"in a text that repeats itself: {problem}", answer, scored, off=found.off)
    return passes(f"a text that repeats itself is scored within {found.off:.1e} nats", found.off)


def check_echo(evidence: Evidence, tolerance: float) -> Finding:
    """An echoed prompt stands before the answer that comes without it, and has its prompt's logprobs."""
    echo, plain = evidence.first("echo"), evidence.first_of("greedy/0")
    if echo is None or plain is None:
        return not_offered(evidence.reason("echo"))
    tokens, generated = echo.only.tokens, plain.only.tokens
    prompt = plain.question.prompt
    if len(tokens) == len(generated) and echo.only.text == plain.only.text:
        return not_offered("it is accepted, and nothing is echoed")
    # Beside token ids vLLM leaves the prompt out of the text, not out of the tokens.
    texts = (f"{prompt}{plain.only.text}", plain.only.text if echo.prompt_ids is not None else None)
    if isinstance(prompt, str) and echo.only.text not in texts:
        return breach(f"the text is {(echo.only.text or '')[:60]!r}; expected prompt and answer", echo, plain)
    split = len(tokens) - len(generated)
    if split <= 0:
        return breach(f"{len(tokens)} tokens with the prompt and {len(generated)} without", echo, plain)
    found = difference(tokens[split:], generated, tolerance)
    if problem := found.sentence(tolerance):
        return breach(f"behind the echoed prompt: {problem}", echo, plain, off=found.off)
    return _echoed_prompt(evidence, echo, tokens[:split], found.off, tolerance)


def _echoed_prompt(
    evidence: Evidence, echo: Answer, tokens: tuple[Token, ...], worst: float, tolerance: float
) -> Finding:
    if any(token.logprob is None for token in tokens[1:]):
        return breach("a token of the echoed prompt has no logprob", echo)
    other = evidence.first("prompted")
    known = [] if other is None else [one for one in other.prompt if one is not None]
    own = [one for one in tokens if one.logprob is not None]
    if other is None or not known:
        return passes(f"{len(tokens)} tokens of the prompt, then the answer within {worst:.1e} nats", worst)
    if len(known) != len(own):
        return breach(f"echo has {len(own)} logprobs of the prompt, prompt_logprobs {len(known)}", echo, other)
    offs = [abs((one.logprob or 0) - (two.logprob or 0)) for one, two in zip(own, known, strict=True)]
    if (off := max(offs, default=0.0)) > tolerance:
        at = offs.index(off)
        return breach(f"echo and prompt_logprobs differ by {off:.4f} nats at token {at}", echo, other, off=off)
    return passes(f"the same as prompt_logprobs, then the answer, within {max(worst, off):.1e} nats", max(worst, off))


def check_choices(evidence: Evidence, tolerance: float) -> Finding:
    """`n` answers are `n` draws that begin with one distribution; greedy ones are all the same."""
    greedy, sampled = evidence.first_of("choices/0"), evidence.first_of("choices/s")
    if sampled is None:
        return not_offered(evidence.reason("choices"))
    for answer in filter(None, (greedy, sampled)):
        if len(answer.choices) != answer.question.n:
            if len(answer.choices) == 1:
                return not_offered("it is accepted, and one answer comes")
            return breach(f"{len(answer.choices)} answers; asked for {answer.question.n}", answer)
    if not sampled.only.tokens:
        return not_offered("there are no logprobs, without which copies look like chance")
    return (
        _copies(sampled, tolerance)
        or _greedy_copies(greedy, tolerance)
        or passes(
            f"{sampled.question.n} draws from one distribution{'' if greedy is None else ', greedy ones the same'}"
        )
    )


def _copies(sampled: Answer, tolerance: float) -> Finding | None:
    """What is wrong with several draws; None where nothing is."""
    first = [choice.tokens[0] for choice in sampled.choices if choice.tokens]
    offs = [difference([first[0]], [one], tolerance).off for one in first[1:]]
    if (off := max(offs, default=0.0)) > tolerance:
        return breach(f"the answers' first distributions differ by {off:.4f} nats", sampled, off=off)
    if len({_names(choice.tokens) for choice in sampled.choices}) == 1:
        chance = (sampled.question.n - 1) * sum(token.logprob or 0.0 for token in sampled.only.tokens)
        if chance < _DISTINCT:
            return breach(
                f"{sampled.question.n} draws are the same; by chance that is one in {_one_in(chance)}", sampled
            )
    return None


def _greedy_copies(greedy: Answer | None, tolerance: float) -> Finding | None:
    """What is wrong with several greedy answers; None where nothing is."""
    for choice in () if greedy is None else greedy.choices[1:]:
        found = difference(greedy.only.tokens, choice.tokens, tolerance)  # type: ignore[union-attr] # it has choices
        if problem := found.sentence(tolerance):
            return breach(f"greedy answers: {problem}", greedy, off=found.off)  # type: ignore[arg-type] # as above
    return None


def check_seed(evidence: Evidence, tolerance: float) -> Finding:
    """One seed gives one answer, streamed too; other seeds give others."""
    one, again = evidence.first_of("seed/a"), evidence.first_of("seed/b")
    if one is None or again is None:
        return not_offered(evidence.reason("seed"))
    for other, what in ((again, "asked again"), (evidence.first_of("seedstream/a"), "streamed")):
        if other is not None:
            found = difference(one.only.tokens, other.only.tokens, 0.0)
            problem = found.sentence(tolerance) or ("the tokens part" if found.parting is not None else "")
            problem = problem or frame_difference(one.only, other.only)
            if problem:
                return breach(f"the same seed, {what}: {problem}", one, other, off=found.off)
    others = evidence.all("otherseed")
    names = {_names(answer.only.tokens) for answer in others}
    chance = len(others) * sum(token.logprob or 0.0 for token in one.only.tokens)
    if names == {_names(one.only.tokens)} and chance < _DISTINCT:
        return breach(f"{len(others) + 1} seeds give one answer; by chance one in {_one_in(chance)}", one, *others)
    return passes(f"one seed, one answer; {len(names | {_names(one.only.tokens)})} answers of {len(others) + 1} seeds")


def _names(tokens: tuple[Token, ...]) -> tuple[object, ...]:
    return tuple(token.name for token in tokens)


def _one_in(chance: float) -> str:
    """The inverse of a probability, from its logarithm."""
    return f"1e{-chance / math.log(10):.0f}"


def check_greedy(evidence: Evidence, tolerance: float) -> Finding:
    """At temperature 0 every token is the most likely one."""
    worst, count = 0.0, 0
    for name in ("greedy", "again", "stream", "crowd", "short"):
        for answer in evidence.all(name):
            for at, token in enumerate(answer.only.tokens):
                best = token.best
                if token.name not in best or not token.alternatives:
                    continue
                off = max(best.values()) - best[token.name]
                if off > tolerance:
                    return breach(f"token {at} is {off:.4f} nats less likely than the best one", answer, off=off)
                worst, count = max(worst, off), count + 1
    if not count:
        return not_offered(evidence.reason("greedy") if not evidence.all("greedy") else "there are no alternatives")
    return passes(f"the most likely one at {count} tokens", worst)
