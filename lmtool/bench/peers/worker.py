"""The program that runs one engine in the environment of its own: requests come as JSON lines, so do the answers.

It needs the standard library and that engine only, so that a foreign Python can run it (`lmtool.bench.worker`).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

MODULES = {
    "lmtool": "lmtool_peer",
    "transformers": "transformers_peer",
    "transformers-cb": "batching_peer",
    "llamacpp": "llamacpp_peer",
    "ctranslate2": "ctranslate2_peer",
    "vllm": "vllm_peer",
    "ceiling": "ceiling_peer",
    "maker": "maker_peer",
}
"""Name of a peer to its module beside this one."""


class Peer(Protocol):
    """One engine with one model."""

    def about(self) -> dict[str, Any]:
        """What it is: `versions` at least."""

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        """Continue all prompts at once, greedily, `output` tokens each, eos ids being nothing special."""


def main(words: list[str]) -> None:
    """Serve requests on stdin until it ends. words: the peer's name, its settings as JSON."""
    name, settings = words[0], json.loads(words[1])
    wire = _wire()
    if settings.get("cpus"):
        os.sched_setaffinity(0, settings["cpus"])
    began = time.perf_counter()
    try:
        peer = importlib.import_module(f"lmtool.bench.peers.{MODULES[name]}").Peer(settings)
    except Exception as problem:  # noqa: BLE001  # whatever it is, the program that started this one tells it
        _say(wire, _failure(problem))
        return
    _say(wire, {**peer.about(), "load_s": time.perf_counter() - began})
    for line in sys.stdin:
        try:
            answer = answer_to(peer, json.loads(line))
        except Exception as problem:  # noqa: BLE001  # as above
            answer = _failure(problem)
        _say(wire, answer)
    if hasattr(peer, "close"):
        peer.close()


def answer_to(peer: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked: `timed` runs, or the call of one of the peer's own methods."""
    if request["do"] == "timed":
        return timed(peer, request["first"], request["then"], request["output"])
    if request["do"] == "greedy":
        return {"ids": peer.generate(request["prompts"], request["output"])}
    result: dict[str, Any] = getattr(peer, request["do"])(**request.get("with", {}))
    return result


def timed(peer: Peer, first: list[list[int]], then: list[list[int]], output: int) -> dict[str, Any]:
    """Wall and CPU seconds of the prompts alone (one token each) and of a whole run, which uses other prompts.

    Other prompts of the same lengths, because an engine may remember. Decoding takes the difference.
    """
    prefill, _ = _measured(lambda: peer.generate(first, 1))
    total, ids = _measured(lambda: peer.generate(then, output))
    return {
        "prefill_s": prefill[0],
        "prefill_cpu_s": prefill[1],
        "total_s": total[0],
        "total_cpu_s": total[1],
        "lengths": [len(own) for own in ids],
        "rss_bytes": _resident(),
    }


def _measured(work: Callable[[], list[list[int]]]) -> tuple[tuple[float, float], list[list[int]]]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return (time.perf_counter() - wall, time.process_time() - cpu), result


def _resident() -> int:
    """Most memory this process has held, in bytes."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _failure(problem: Exception) -> dict[str, Any]:
    return {"error": f"{type(problem).__name__}: {problem}"}


def _wire() -> TextIO:
    """Stdout for answers alone: whatever libraries print goes to stderr."""
    wire = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return wire


def _say(wire: TextIO, answer: dict[str, Any]) -> None:
    wire.write(json.dumps(answer) + "\n")
    wire.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
