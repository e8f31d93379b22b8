"""Checks of what an answer says of itself: counts of tokens, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.measure.audit.evidence import breach, not_offered, passes

if TYPE_CHECKING:
    from lmtool.measure.audit.evidence import Answer, Choice, Evidence, Finding

_ENDS = ("stop", "eos")
"""What servers call an ending by eos or a stop."""


def check_usage(evidence: Evidence, tolerance: float) -> Finding:  # noqa: ARG001  # the signature of checks
    """Counts are those of the tokens that came, and one prompt has one count."""
    prompts: dict[object, tuple[int, Answer]] = {}
    counted = 0
    for answer in evidence.everything:
        count, question = answer.count, answer.question
        if count is None or question.scored:
            continue
        counted += 1
        if problem := _miscounted(answer):
            return breach(problem, answer)
        if count.prompt is None:
            continue
        if answer.prompt_ids is not None and count.prompt != len(answer.prompt_ids):
            return breach(f"prompt_tokens is {count.prompt}, the prompt has {len(answer.prompt_ids)} ids", answer)
        before, other = prompts.setdefault(question.prompt, (count.prompt, answer))
        if before != count.prompt:
            return breach(f"prompt_tokens of one prompt is {before} and {count.prompt}", other, answer)
    if not counted:
        return not_offered("answers have no usage")
    silent = [one for one in evidence.all("stream") if one.count is None]
    more = "; streams have none" if silent else ""
    return passes(f"right in {counted} answers{more}")


def _miscounted(answer: Answer) -> str:
    count = answer.count
    if count is None or count.completion is None:
        return ""
    if None not in (count.total, count.prompt) and count.total != (count.prompt or 0) + count.completion:
        return f"total_tokens is {count.total}, with {count.prompt} of the prompt and {count.completion} of the answer"
    least, most = 0, 0
    for choice in answer.choices:
        length = _length(choice, answer)
        if length is None:
            return ""
        # An ending by eos may be counted or not; behind a stop string tokens may be cut off.
        ended = choice.finish_reason in _ENDS
        least += length - ended
        most += length + ended * (8 if answer.question.stop else 1)
    if least <= count.completion <= most:
        return ""
    expected = f"{least}" if least == most else f"{least} to {most}"
    return f"completion_tokens is {count.completion}; expected {expected}"


def _length(choice: Choice, answer: Answer) -> int | None:
    """Tokens that were generated; None where that is not known."""
    if answer.question.echo:
        return None  # prompt and answer stand together
    if choice.ids is not None:
        return len(choice.ids)
    return len(choice.tokens) or None


def check_finish_reason(evidence: Evidence, tolerance: float) -> Finding:  # noqa: ARG001  # as above
    """An answer says once how it ended: `length` at the most tokens it may have, `stop` at a stop or eos."""
    count = 0
    for answer in evidence.everything:
        if answer.question.scored or answer.question.max_tokens == 0:
            continue
        for choice in answer.choices:
            count += 1
            if problem := _ended_wrongly(choice, answer):
                return breach(problem, answer)
    stop, short, greedy = (evidence.first_of(name) for name in ("stop/0", "short/0", "greedy/0"))
    if short is not None and greedy is not None and (problem := _cut_wrongly(short, greedy)):
        return breach(problem, short, greedy)
    if stop is not None and greedy is not None and (problem := _stopped_wrongly(stop, greedy)):
        return breach(problem, stop, greedy)
    if not count:
        return not_offered("nothing was answered")
    more = "" if stop is not None else f"; stops: {evidence.reason('stop')}"
    return passes(f"right in {count} answers{more}")


def _ended_wrongly(choice: Choice, answer: Answer) -> str:
    if choice.endings != 1:
        return f"finish_reason was sent {choice.endings} times; expected once"
    length, most = _length(choice, answer), answer.question.max_tokens
    if length is None:
        return ""
    if length > most:
        return f"{length} tokens; expected at most {most}"
    if choice.finish_reason == "length" and length < most:
        return f"finish_reason is 'length' after {length} of {most} tokens"
    if choice.finish_reason != "length" and choice.finish_reason not in _ENDS:
        return f"finish_reason is {choice.finish_reason!r}; expected 'stop' or 'length'"
    return ""


def _cut_wrongly(short: Answer, greedy: Answer) -> str:
    """What is wrong with an answer that goes on where it may have more tokens."""
    goes_on = len(greedy.only.tokens) > len(short.only.tokens) >= short.question.max_tokens
    if goes_on and short.only.finish_reason != "length":
        return (
            f"finish_reason is {short.only.finish_reason!r} at max_tokens, where the answer goes on; expected 'length'"
        )
    return ""


def _stopped_wrongly(stop: Answer, greedy: Answer) -> str:
    """What is wrong with an answer that had to stop in its middle."""
    choice, whole = stop.only, greedy.only
    if choice.finish_reason not in _ENDS:
        return f"finish_reason is {choice.finish_reason!r} at a stop; expected 'stop'"
    if stop.question.stop_token_id is not None:
        ids = whole.ids or ()
        expected = ids[: ids.index(stop.question.stop_token_id) + 1]
        return (
            ""
            if choice.ids == expected
            else f"{len(choice.ids or ())} tokens up to a stop id; expected {len(expected)}"
        )
    text, mark = whole.text or "", stop.question.stop or ""
    before = text[: text.find(mark)]
    if choice.text not in (before, before + mark):
        return f"the text before the stop {mark!r} is {(choice.text or '')[-30:]!r}; expected {before[-30:]!r}"
    return ""
