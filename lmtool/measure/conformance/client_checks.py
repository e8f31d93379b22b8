"""What can be expected of a client: each check looks at a run of it and yields a sentence for everything wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.measure.conformance.transcript import ends, same_id, short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lmtool.measure.conformance.transcript import ClientRun

    _Problems = Iterator[str]


def asks(run: ClientRun) -> _Problems:
    """It sends a GENERATE."""
    if not run.requests("GENERATE"):
        sent = [message.command for message in run.transcript.sent()]
        yield f"it sent no GENERATE (it sent: {short(sent)}); the suite needs a command that generates"


def dials(run: ClientRun, *, path: str) -> _Problems:
    """It connects to this path, with its first frame unasked."""
    if path not in run.paths:
        yield f"it connected to {short(run.paths)}; expected {path}"


def well_formed(run: ClientRun) -> _Problems:
    """Everything it sends is a text frame: a command in capitals, one space, a JSON object, valid JSON."""
    for message in run.transcript.sent():
        if message.command is None or not message.command.isupper():
            yield f"not a command, one space and JSON: {short(message.content)}"
        elif not isinstance(message.payload, dict):
            yield f"the payload is no object: {short(message.content)}"
        elif not message.strict():
            yield f"not valid JSON: {short(message.content)}"


def one_space(run: ClientRun) -> _Problems:
    """There is exactly one space between command and payload, and nothing behind it."""
    for message in run.transcript.sent():
        text = str(message.content).partition(" ")[2]
        if text != text.strip():
            yield f"more than one space: {short(message.content)}"


def stream_ids(run: ClientRun) -> _Problems:
    """Each request has a stream_id that is not null, and none is used while a stream of that id runs."""
    running: list[object] = []
    for message in run.transcript.messages:
        if message.direction == "<":
            over = [entry.get("stream_id") for entry in message.entries if ends(entry)]
            running = [one for one in running if not any(same_id(one, other) for other in over)]
            continue
        of = message.entries[0].get("stream_id") if message.entries else None
        if of is None:
            yield f"no stream_id: {short(message.content)}"
        elif message.command in ("GENERATE", "SCORE"):
            if any(same_id(of, one) for one in running):
                yield f"stream_id {short(of)} is used again while its stream runs"
            running.append(of)


def prompts(run: ClientRun) -> _Problems:
    """Each GENERATE has a prompt of token ids, or a text or messages: the suite's server takes all."""
    for message in run.requests("GENERATE"):
        payload = message.payload if isinstance(message.payload, dict) else {}
        prompt, messages = payload.get("prompt"), payload.get("messages")
        ids = isinstance(prompt, list) and all(type(i) is int and i >= 0 for i in prompt)
        if (prompt is None) == (messages is None) or not (ids or isinstance(prompt, str) or isinstance(messages, list)):
            yield f"expected a prompt of token ids or a text, or messages: {short(message.content)}"


def buffers(run: ClientRun) -> _Problems:
    """It sends no BUFFER and names no buffer: the suite's server has not announced that it knows them."""
    for message in run.requests("BUFFER"):
        yield f"BUFFER to a server that does not announce it: {short(message.content)}"
    for message in run.requests("GENERATE", "SCORE"):
        payload = message.payload if isinstance(message.payload, dict) else {}
        entries = payload.get("prompt")
        if "into" in payload or any(isinstance(one, dict) for one in (entries if isinstance(entries, list) else ())):
            yield f"a buffer, for a server that does not announce them: {short(message.content)}"


def cancels(run: ClientRun) -> _Problems:
    """A CANCEL names the model too, because LMQL's server closes a connection on a frame without."""
    for message in run.requests("CANCEL"):
        if not message.entries or not message.entries[0].get("model"):
            yield f"CANCEL without model: {short(message.content)}"


def usual_output(run: ClientRun) -> _Problems:
    """It prints what it prints for a plain answer."""
    if run.usual is not None and run.stdout != run.usual:
        yield f"it printed {short(run.stdout)!r}; for a plain answer of the same tokens it prints {short(run.usual)!r}"


def tells(run: ClientRun, *, text: str) -> _Problems:
    """What it prints holds a text, on stdout or stderr."""
    if text not in run.stdout and text not in run.stderr:
        yield f"neither stdout nor stderr tells {text!r}: {short(run.stdout + run.stderr)!r}"


def answers_pings(run: ClientRun) -> _Problems:
    """It answers pings."""
    yield from run.notes


CLIENT_CHECKS: Mapping[str, Callable[..., Iterator[str]]] = {
    one.__name__: one
    for one in (
        asks,
        dials,
        well_formed,
        one_space,
        stream_ids,
        prompts,
        buffers,
        cancels,
        usual_output,
        tells,
        answers_pings,
    )
}
"""By name. Each is called with a run and an expectation's arguments."""
