"""What can be expected of a server: each check reads the transcript and yields a sentence for everything wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lmtool.measure.conformance.logprob_checks import alternatives, best_first, certain, finite, is_number, normalised
from lmtool.measure.conformance.model_checks import fingerprints, key_limits, listed, model_info
from lmtool.measure.conformance.transcript import ends, msg_refusal, short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lmtool.measure.conformance.transcript import Transcript


def ending(
    log: Transcript, *, of: object, at: str = "a", reason: Sequence[str] = (), token: bool | None = None
) -> _Problems:
    """The stream has exactly one ending, its last entry, without an error; token: whether that entry has a token."""
    entries = log.entries(of, at)
    endings = [entry for entry in entries if ends(entry)]
    if len(endings) != 1:
        shown = [entry.get("finish_reason") or entry.get("error") for entry in endings]
        yield f"stream {of}: expected exactly one ending, got {len(endings)}: {short(shown)}{msg_refusal(log, of, at)}"
        return
    if endings[0] is not entries[-1]:
        yield f"stream {of}: {len(entries) - entries.index(endings[0]) - 1} entries came after its end"
    if endings[0].get("error") is not None:
        yield f"stream {of}: failed: {short(endings[0]['error'])}"
    elif reason and endings[0].get("finish_reason") not in reason:
        yield f"stream {of}: finish_reason is {endings[0].get('finish_reason')!r}; expected {' or '.join(reason)}"
    if token is not None and (endings[0].get("token") is not None) != token:
        yield f"stream {of}: its ending has {'no' if token else 'a'} token: {short(endings[0])}"


def failure(
    log: Transcript,
    *,
    of: object,
    at: str = "a",
    mentions: str = "",
    code: Sequence[str] = (),
    coded: bool | None = None,
    retryable: bool | None = None,
) -> _Problems:
    """The stream ends with one TOKEN entry whose `error` is a text (that holds `mentions`); code: its `error_code`.

    coded: whether there is one at all; where there is not, neither is what belongs to it. retryable: what EXT-7 says.
    """
    failed = [entry for entry in log.entries(of, at) if entry.get("error") is not None]
    if len(failed) != 1:
        yield f"stream {of}: expected one TOKEN entry with an error, got {len(failed)}{msg_refusal(log, of, at)}"
        return
    yield from _says(f"stream {of}", failed[0], mentions)
    if code and failed[0].get("error_code") not in code:
        yield f"stream {of}: error_code is {failed[0].get('error_code')!r}; expected {' or '.join(code)}"
    if coded is not None and ("error_code" in failed[0]) != coded:
        yield f"stream {of}: error_code is {'missing' if coded else 'there unasked'}: {short(failed[0])}"
    if coded is False and (unasked := sorted(_DETAILS & failed[0].keys())):
        yield f"stream {of}: {unasked[0]} is there unasked: {short(failed[0])}"
    if retryable is not None:
        yield from _details(f"stream {of}", failed[0], retryable=retryable)


_DETAILS = {"retryable", "retry_after", "hints"}


def _details(whose: str, entry: Mapping[str, object], *, retryable: bool) -> _Problems:
    """What is wrong with the parts of an error that EXT-7 names."""
    if entry.get("retryable") is not retryable:
        yield f"{whose}: retryable is {short(entry.get('retryable'))}; expected {str(retryable).lower()}"
    seconds = entry.get("retry_after", 1)
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < 1:
        yield f"{whose}: retry_after is {short(seconds)}; expected whole seconds, or nothing"
    hints = entry.get("hints", [""])
    if not isinstance(hints, list) or not hints or not all(isinstance(hint, str) for hint in hints):
        yield f"{whose}: hints is {short(hints)}; expected a list of sentences, or nothing"


def refusal(log: Transcript, *, of: object, at: str = "a", mentions: str = "", count: int = 1) -> _Problems:
    """The request is answered with MSG entries whose `error` is a text; `of` null: an error of no stream."""
    refusals = [entry for entry in log.replies(of, at) if entry.get("error") is not None]
    if len(refusals) != count:
        yield f"request {of}: expected {count} MSG entries with an error, got {len(refusals)}"
    for entry in refusals:
        yield from _says(f"request {of}", entry, mentions)


def silence(log: Transcript, *, of: object, at: str = "a") -> _Problems:
    """Nothing at all comes for this id."""
    entries = [*log.entries(of, at), *log.replies(of, at)]
    if entries:
        yield f"expected nothing for {of}, got {short(entries)}"


def no_message(log: Transcript, *, of: object, at: str = "a") -> _Problems:
    """No MSG comes for this id."""
    if log.replies(of, at):
        yield f"expected no MSG for {of}, got {short(log.replies(of, at))}"


def tokens(log: Transcript, *, of: object, at: str = "a", least: int = 0, most: int | None = None) -> _Problems:
    """The stream's number of tokens."""
    count = len(log.tokens(of, at))
    if count < least or (most is not None and count > most):
        expected = f"{least}" if least == most else f"{least} to {most}" if most is not None else f"at least {least}"
        yield f"stream {of}: {count} tokens; expected {expected}{_failure_of(log, of, at)}"


def token_ids(log: Transcript, *, of: object, are: Sequence[int], at: str = "a") -> _Problems:
    """The stream's token ids, all of them."""
    if log.ids(of, at) != list(are):
        yield f"stream {of}: tokens {short(log.ids(of, at))}; expected {short(list(are))}{_failure_of(log, of, at)}"


def without(log: Transcript, *, of: object, token: int, at: str = "a") -> _Problems:
    """The stream has tokens, and this id is not among them."""
    if token in log.ids(of, at) or not log.ids(of, at):
        yield f"stream {of}: tokens {short(log.ids(of, at))}; expected some, and not {token}"


def same_tokens(log: Transcript, *, of: object, as_: object, at: str = "a", as_at: str = "a") -> _Problems:
    """Two streams have the same token ids, at least one."""
    ours, theirs = log.ids(of, at), log.ids(as_, as_at)
    if ours != theirs or not ours:
        yield f"streams {of} and {as_} should have the same tokens: {short(ours)} and {short(theirs)}"


def continued(log: Transcript, *, of: object, parts: Sequence[object]) -> _Problems:
    """A stream has the tokens of several streams, one behind the other."""
    whole, joined = log.ids(of), [token for part in parts for token in log.ids(part)]
    if whole != joined or not whole:
        yield f"stream {of} has the tokens {short(whole)}; those of the streams {list(parts)} are {short(joined)}"


def same_logprobs(log: Transcript, *, of: object, as_: object, within: float) -> _Problems:
    """Two streams of the same tokens have the same logprobs."""
    yield from same_tokens(log, of=of, as_=as_)
    pairs = zip(log.tokens(of), log.tokens(as_), strict=False)
    for i, (one, other) in enumerate(pairs):
        a, b = one.get("logprob"), other.get("logprob")
        if not (is_number(a) and is_number(b) and abs(a - b) <= within):
            yield f"token {i} of streams {of} and {as_}: logprobs {a} and {b}; expected the same within {within:g}"


def fields(log: Transcript, *, of: object, has: Sequence[str] = (), lacks: Sequence[str] = ()) -> _Problems:
    """Every entry with a token has and lacks these fields."""
    if not log.tokens(of):
        yield f"stream {of} has no token{_failure_of(log, of, 'a')}"
    for i, entry in enumerate(log.tokens(of)):
        missing, unwanted = [n for n in has if n not in entry], [n for n in lacks if n in entry]
        if missing or unwanted:
            yield f"token {i} of stream {of}: {', '.join(missing) or 'nothing'} missing, unasked: {unwanted}"
            return


def integers(log: Transcript, *, of: object) -> _Problems:
    """Token ids are integers and logprobs are numbers."""
    for i, entry in enumerate(log.tokens(of)):
        if type(entry["token"]) is not int or not is_number(entry.get("logprob")):
            yield f"token {i} of stream {of}: {short(entry)}; expected an integer and a finite logprob"
            return


def strict_json(log: Transcript) -> _Problems:
    """Everything that came is valid JSON."""
    for message in log.received():
        if not message.strict():
            yield f"not valid JSON: {short(message.content)}"
            return


def lists(log: Transcript) -> _Problems:
    """Everything that came is TOKEN or MSG, one space, and a list of objects."""
    for message in log.received():
        well = isinstance(message.payload, list) and len(message.entries) == len(message.payload)
        if message.command not in ("TOKEN", "MSG") or not well:
            yield f"neither a TOKEN list nor a MSG list: {short(message.content)}"
            return


def buffered(log: Transcript, *, of: object, name: str, ids: Sequence[int] | None = None) -> _Problems:
    """The request is answered once with `buffer`, which has this name, and as its length the number of these ids."""
    answers = [entry["buffer"] for entry in log.replies(of) if "buffer" in entry]
    answer = answers[0] if len(answers) == 1 and isinstance(answers[0], dict) else {}
    length = answer.get("length")
    if answer.get("name") != name or type(length) is not int or (ids is not None and length != len(ids)):
        expected = f"buffer {name!r}" if ids is None else f"buffer {name!r} of {len(ids)} ids"
        yield f"request {of}: expected one MSG entry about {expected}, got {short(answers)}{msg_refusal(log, of, 'a')}"


def closed(log: Transcript, *, at: str = "a", code: int) -> _Problems:
    """The server has closed the connection with this code."""
    end = log.closed.get(at)
    if end is None or end.by != "server" or end.code != code:
        state = "it is open" if end is None else f"it was closed with {end.code} {end.reason}".rstrip()
        yield f"connection {at}: expected that the server closes it with {code}; {state}"


def still_open(log: Transcript, *, at: str = "a") -> _Problems:
    """The connection goes on."""
    if at in log.closed and log.closed[at].by == "server":
        yield f"connection {at} was closed with {log.closed[at].code} {log.closed[at].reason}".rstrip()


def handshake(log: Transcript, *, at: str, status: int) -> _Problems:
    """The status with which a WebSocket handshake was answered."""
    if log.handshakes.get(at) != status:
        yield f"the handshake of connection {at} was answered with {log.handshakes.get(at)}; expected {status}"


def http(log: Transcript, *, path: str, status: int, member: str = "") -> _Problems:
    """The answer to a GET: its status, and a member of its JSON object."""
    import json

    answer = log.http.get(path)
    if answer is None or answer.status != status:
        yield f"GET {path} was answered with {answer and answer.status}; expected {status}"
        return
    try:
        value = json.loads(answer.body)
    except ValueError:
        value = None
    if member and not (isinstance(value, dict) and member in value):
        yield f"GET {path}: expected a JSON object with {member!r}, got {short(answer.body)}"


def ends_before(log: Transcript, *, first: object, second: object) -> _Problems:
    """One stream ends before another does."""
    places = [[i for i, entry in log.placed_entries(of) if ends(entry)] for of in (first, second)]
    if not all(places) or places[0][0] > places[1][0]:
        yield f"stream {first} should have ended before stream {second}; their endings came in the other order"


def scored(log: Transcript, *, of: object, ids: Sequence[int]) -> _Problems:
    """Each of the scored ids comes back once, in order, and only the last ends the stream, with `stop`."""
    yield from token_ids(log, of=of, are=ids)
    reasons = [entry.get("finish_reason") for entry in log.entries(of)]
    if reasons != [None] * (len(ids) - 1) + ["stop"]:
        yield f"stream {of}: finish_reasons {short(reasons)}; expected null for all but the last, which is 'stop'"


def texts(log: Transcript, *, of: object, present: bool = True, least: int = 1) -> _Problems:
    """Every entry has (or none has) `text`, never half a character; joined, at least that number of characters."""
    parts = [entry.get("text") for entry in log.entries(of)]
    if not present:
        if any(text is not None for text in parts):
            yield f"stream {of}: text came unasked: {short(parts)}"
        return
    strange = [t for t in parts[:-1] if not isinstance(t, str) or "\ufffd" in t]
    joined = "".join(t for t in parts if isinstance(t, str))
    if strange or len(joined) < least:
        yield f"stream {of}: texts {short(parts)}; expected text in every entry, and {least} characters at least"


def no_text(log: Transcript, *, of: object) -> _Problems:
    """The stream's text is empty."""
    joined = "".join(str(entry.get("text") or "") for entry in log.entries(of))
    if joined:
        yield f"stream {of}: its text is {short(joined)!r}; expected none"


def usage(log: Transcript, *, of: object, prompt: int | None = None, present: bool = True) -> _Problems:
    """The last entry alone has `usage`, and its counts fit the stream."""
    entries = log.entries(of)
    having = [i for i, entry in enumerate(entries) if entry.get("usage") is not None]
    if having != ([len(entries) - 1] if present else []):
        expected = "the last" if present else "none"
        yield f"stream {of}: usage is in entries {having} of {len(entries)}; expected {expected}"
        return
    counts = entries[-1].get("usage") if present else None
    if isinstance(counts, dict):
        right = {"prompt_tokens": prompt, "completion_tokens": len(log.tokens(of))}
        if any(counts.get(name) != count for name, count in right.items()):
            yield f"stream {of}: usage is {short(counts)}; expected {right}"


def ignored(log: Transcript, *, of: object, names: Sequence[str]) -> _Problems:
    """A MSG names the fields without effect (none: no such MSG), before the first TOKEN of the stream."""
    ignored_lists = [entry["ignored"] for entry in log.replies(of) if "ignored" in entry]
    if ignored_lists != ([list(names)] if names else []):
        yield f"stream {of}: ignored is told as {short(ignored_lists)}; expected {list(names)}"
        return
    first = next((m.command for m in log.received() if any(e.get("stream_id") == of for e in m.entries)), None)
    if names and first != "MSG":
        yield f"stream {of}: ignored was told after its first answer"


def system_messages(log: Transcript, *, of: object, may: bool) -> _Problems:
    """System messages of a stream are as SYS-1 says, and come before its end; may: whether there may be any."""
    told = [entry["system"] for entry in log.replies(of) if "system" in entry]
    if told and not may:
        yield f"stream {of}: {short(told[0])} is told unasked"
    for one in told:
        object_ = one if isinstance(one, dict) else {}
        place, seconds = object_.get("place", 1), object_.get("seconds", 0)
        texts_ = isinstance(object_.get("kind"), str) and isinstance(object_.get("message"), str)
        whole = isinstance(place, int) and not isinstance(place, bool) and place >= 1
        if not (texts_ and whole and is_number(seconds) and seconds >= 0):
            yield f"stream {of}: system is {short(one)}; expected kind and message, a place from 1, a number of seconds"


def watched(log: Transcript, *, of: object, at: str = "a") -> _Problems:
    """The request is answered with what other connections say, or refused as something that is not allowed."""
    replies = log.replies(of, at)
    if not replies:
        yield f"request {of}: no answer"
        return
    first, watch = replies[0], replies[0].get("watch")
    if first.get("error") is not None:
        if first.get("error_code") not in ("access_denied", "overloaded"):
            yield f"request {of}: refused with the code {short(first.get('error_code'))}; expected access_denied"
    elif not isinstance(watch, Mapping) or not is_number(watch.get("time")) or not _tells(watch):
        yield f"request {of}: watch is {short(watch)}; expected a time, a list of events, and how many are lost"


def _tells(watch: Mapping[str, object]) -> bool:
    lost, events = watch.get("lost"), watch.get("events")
    return type(lost) is int and lost >= 0 and isinstance(events, list) and all(isinstance(e, list) for e in events)


def some_refused(log: Transcript, *, streams: int) -> _Problems:
    """Of the streams 1 to `streams`, all begun at once, some fail and the others do not."""
    failed = [i for i in range(1, streams + 1) if any(e.get("error") is not None for e in log.entries(i))]
    if not 0 < len(failed) < streams:
        yield f"{len(failed)} of {streams} streams at once were refused; expected some, but not all"


def sampled_apart(log: Transcript, *, of: Sequence[object]) -> _Problems:
    """Sampled streams are not all the same."""
    if len({tuple(log.ids(one)) for one in of}) == 1:
        yield f"all of {len(of)} streams at a high temperature have the same tokens: {short(log.ids(of[0]))}"


def _says(whose: str, entry: Mapping[str, object], mentions: str) -> _Problems:
    error = entry.get("error")
    if not isinstance(error, str) or not error:
        yield f"{whose}: its error is {short(error)}; expected a text"
    elif mentions.lower() not in error.lower():
        yield f"{whose}: its error does not mention {mentions!r}: {short(error)}"


def _failure_of(log: Transcript, of: object, at: str) -> str:
    errors = [entry["error"] for entry in log.entries(of, at) if entry.get("error") is not None]
    return f" (it failed: {short(errors[0])})" if errors else msg_refusal(log, of, at)


if TYPE_CHECKING:
    _Problems = Iterator[str]

CHECKS: Mapping[str, Callable[..., Iterator[str]]] = {
    one.__name__: one
    for one in (
        ending, failure, refusal, silence, no_message, tokens, token_ids, without, same_tokens, continued,
        same_logprobs, fields, integers, alternatives, best_first, normalised, certain, finite, strict_json, lists,
        model_info, listed, fingerprints, buffered, closed, still_open, handshake, http, ends_before, scored, texts,
        no_text, usage, ignored, system_messages, watched,
        some_refused, sampled_apart, key_limits,
    )
}  # fmt: skip
"""By name. Each is called with a transcript and an expectation's arguments."""
