"""What a worker does with a request."""

from __future__ import annotations

import json
import subprocess
import sys

from lmtool.bench.peers.worker import MODULES, answer_to, timed


class Counting:
    """Continues a prompt with its length and what follows it."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[list[int]], int]] = []

    def about(self) -> dict[str, object]:
        return {}

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        self.asked.append((prompts, output))
        return [list(range(len(prompt), len(prompt) + output)) for prompt in prompts]

    def twice(self, number: int) -> dict[str, object]:
        return {"result": 2 * number}


def test_a_timed_run_uses_other_prompts_than_the_one_before_it() -> None:
    """One token of the first, all of the second; both clocks; lengths to check that the work was done."""
    peer = Counting()
    told = timed(peer, [[1, 2]], [[3, 4]], 5)
    assert peer.asked == [([[1, 2]], 1), ([[3, 4]], 5)]
    assert told["lengths"] == [5]
    assert told["prefill_s"] >= 0
    assert told["rss_bytes"] > 1_000_000


def test_requests() -> None:
    """`greedy`, and the peer's own methods by name."""
    assert answer_to(Counting(), {"do": "greedy", "prompts": [[1], [1, 2]], "output": 2}) == {"ids": [[1, 2], [2, 3]]}
    assert answer_to(Counting(), {"do": "twice", "with": {"number": 4}}) == {"result": 8}


def test_an_error_is_an_answer() -> None:
    """The process lives on; whatever is printed goes to stderr."""
    words = [sys.executable, "-m", "lmtool.bench.peers.worker", "maker", "{}"]
    done = subprocess.run(words, input='{"do": "nothing"}\n{"do": "fly"}\n', capture_output=True, text=True, check=True)
    first, *rest = (json.loads(line) for line in done.stdout.splitlines())
    assert "transformers" in first["versions"]
    assert [answer["error"].partition(":")[0] for answer in rest] == ["AttributeError"] * 2


def test_every_peer_has_its_module() -> None:
    """Named beside this one."""
    from importlib.util import find_spec

    assert all(find_spec(f"lmtool.bench.peers.{module}") for module in MODULES.values())
