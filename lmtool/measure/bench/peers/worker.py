"""The program that runs one engine in its own environment: calls and answers are JSON lines.

It needs the standard library, our errors and that engine only: a foreign Python can run it (`bench.peer_process`).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Protocol

from lmtool.core.errors import LmtoolError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

MODULES = {
    "lmtool": ("lmtool.measure.bench.peers.lmtool_peer", "Peer"),
    "transformers": ("lmtool.measure.bench.peers.transformers_peer", "Peer"),
    "transformers-cb": ("lmtool.measure.bench.peers.transformers_peer", "BatchingPeer"),
    "llamacpp": ("lmtool.measure.bench.peers.llamacpp_peer", "Peer"),
    "ctranslate2": ("lmtool.measure.bench.peers.ctranslate2_peer", "Peer"),
    "vllm": ("lmtool.measure.bench.peers.vllm_peer", "Peer"),
    "sglang": ("lmtool.measure.bench.peers.sglang_peer", "Peer"),
    "openvino-genai": ("lmtool.measure.bench.peers.openvino_peer", "Peer"),
    "onnxruntime-genai": ("lmtool.measure.bench.peers.onnxruntime_peer", "Peer"),
    "mistralrs": ("lmtool.measure.bench.peers.mistralrs_peer", "Peer"),
    "ceiling": ("lmtool.measure.bench.peers.ceiling_peer", "Peer"),
    "kernels": ("tests.lab.kernels.peer", "Peer"),
    "maker": ("lmtool.measure.bench.peers.maker_peer", "Peer"),
}
"""Name of a peer to its module, and its class."""


class Peer(Protocol):
    """One engine with one model."""

    def about(self) -> dict[str, Any]:
        """A description: `versions` at least."""

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        """Continue all prompts at once, greedily, `output` tokens each, ignoring eos.

        An engine that gives tokens one by one also leaves in `times` when each came, a list a stream, by
        `time.perf_counter`.
        """


def main(words: list[str]) -> None:
    """Serve calls from stdin until its end. words: the peer's name, its settings as JSON."""
    name, settings = words[0], json.loads(words[1])
    wire = answer_stream()
    if settings.get("cpus"):
        os.sched_setaffinity(0, settings["cpus"])
    start = time.perf_counter()
    try:
        module, kind = MODULES[name]
        peer = getattr(importlib.import_module(module), kind)(settings)
    except Exception as problem:  # noqa: BLE001  # whatever it is, the program that started this one reports it
        _send(wire, _failure(problem))
        return
    _send(wire, {**peer.about(), "load_s": time.perf_counter() - start})
    for line in sys.stdin:
        try:
            answer = call(peer, *json.loads(line))
        except Exception as problem:  # noqa: BLE001  # as above
            answer = _failure(problem)
        _send(wire, answer)
    if hasattr(peer, "close"):
        peer.close()


def call(peer: Any, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call `timed`, `greedy`, or one of the peer's own methods."""
    if method == "timed":
        return timed(peer, **arguments)
    if method == "greedy":
        return {"ids": peer.generate(**arguments)}
    result: dict[str, Any] = getattr(peer, method)(**arguments)
    return result


def timed(peer: Peer, first: list[list[int]], then: list[list[int]], output: int) -> dict[str, Any]:
    """Wall and CPU seconds of the prompts alone (one token each), and of a whole run on other prompts; its `waits`.

    Others of the same lengths, because an engine may cache prefixes. Decoding takes the difference.
    """
    prefill, _ = _measured(lambda: peer.generate(first, 1))
    start = time.perf_counter()
    total, ids = _measured(lambda: peer.generate(then, output))
    return {
        "waits": waits(getattr(peer, "times", None), start),
        "prefill_s": prefill[0],
        "prefill_cpu_s": prefill[1],
        "total_s": total[0],
        "total_cpu_s": total[1],
        "lengths": [len(own) for own in ids],
        "rss_bytes": peak_memory(),
    }


def _measured(work: Callable[[], list[list[int]]]) -> tuple[tuple[float, float], list[list[int]]]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return (time.perf_counter() - wall, time.process_time() - cpu), result


def waits(times: list[list[float]] | None, start: float) -> dict[str, float] | None:
    """How long the streams of a run waited, in seconds, see `contest.WAITS`.

    None of an engine that does not tell, and where a stream has no token: `contest.timing` refuses that run.
    """
    if times is None or not all(times):
        return None
    firsts = [own[0] - start for own in times]
    gaps = [after - before for own in times for before, after in pairwise(own)]
    return {
        "first_mean": fmean(firsts),
        "first_last": max(firsts),
        "itl": median(gaps or [0.0]),
        "gap": max(gaps, default=0.0),
    }


def peak_memory() -> int:
    """Peak memory of this process, in bytes."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _failure(problem: Exception) -> dict[str, Any]:
    """The answer of a call that failed; `hints` with an error that is for a person to act on."""
    if isinstance(problem, LmtoolError):
        return {"error": problem.message, "hints": problem.hints}
    return {"error": f"{type(problem).__name__}: {problem}"}


def answer_stream() -> TextIO:
    """Stdout, for answers only: whatever libraries print goes to stderr."""
    wire = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return wire


def _send(wire: TextIO, answer: dict[str, Any]) -> None:
    wire.write(json.dumps(answer) + "\n")
    wire.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
