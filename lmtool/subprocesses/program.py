"""The program of a helper: calls functions that it is sent, one after the other, until nobody sends any.

What goes over stdin and stdout is messages: a pickle and its buffers (PEP 574), each behind its length, all behind
their number; lengths and numbers have eight bytes. On stdin a function that takes nothing and the seconds that it may
take; on stdout whether it returned, and what it returned or raised.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import traceback
from typing import IO, TYPE_CHECKING, Any

from lmtool.subprocesses.background import step_back
from lmtool.subprocesses.memory import LARGE, release_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def main() -> None:
    """Answer until stdin ends."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    step_back()
    gc.disable()  # what is read is a tree of up to a million parts, through which it would go again and again
    with contextlib.suppress(EOFError):
        while True:
            size = _serve(questions, answers)
            gc.collect(0)  # of what this question made, by now nearly nothing
            if size >= LARGE:
                release_memory()


def _serve(questions: IO[bytes], answers: IO[bytes]) -> int:
    """Answer one question; how many bytes it has."""
    parts = _parts(questions)
    function, seconds = _unpack(parts)
    _give_up_after(seconds)
    answer = _answer(function)
    _give_up_after(0)
    send(answers, answer)
    return sum(map(len, parts))


class OutOfBand:
    """A long text, or bytes, for a message: arrives as what it is, and is copied as seldom as can be on the way."""

    def __init__(self, data: str | bytes) -> None:
        self._data = data

    def __reduce_ex__(self, _protocol: object) -> tuple[object, ...]:
        if isinstance(self._data, str):
            encoded = pickle.PickleBuffer(self._data.encode(errors="surrogatepass"))
            return str, (encoded, "utf-8", "surrogatepass")
        return bytes, (pickle.PickleBuffer(self._data),)


def pack(value: object) -> list[bytes | memoryview]:
    """The parts of a message. Raises what pickle raises."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return [head, *(buffer.raw() for buffer in buffers)]


def send(pipe: IO[bytes], parts: Sequence[bytes | memoryview]) -> None:
    """Write a message made by `pack`."""
    pipe.write(len(parts).to_bytes(8, "little"))
    for part in parts:
        pipe.write(len(part).to_bytes(8, "little"))
        pipe.write(part)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:  # noqa: ANN401  # whatever was sent
    """Read a message. Raises `EOFError` where there is none, or none that is whole."""
    return _unpack(_parts(pipe))


def _unpack(parts: Sequence[bytes]) -> Any:  # noqa: ANN401  # whatever was sent
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301  # from our own process


def _parts(pipe: IO[bytes]) -> list[bytes]:
    return [_exactly(pipe, _number(pipe)) for _ in range(_number(pipe))]


def _number(pipe: IO[bytes]) -> int:
    return int.from_bytes(_exactly(pipe, 8), "little")


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError
    return data


def _answer(function: Callable[[], object]) -> list[bytes | memoryview]:
    try:
        return pack((True, function()))
    except Exception as problem:  # noqa: BLE001  # it is the caller's
        problem.add_note(f"in a helper:\n{traceback.format_exc()}")
        return pack((False, problem))


def _give_up_after(seconds: float) -> None:
    """End this process then, even where the one that would kill it is gone and a library hangs; 0: never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
