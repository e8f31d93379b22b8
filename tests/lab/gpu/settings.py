"""Settings of `lab gpu`, and its sections: what each measures, for how long, and what it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import UsageError
from lmtool.inference.engine.random_model import PREFIX, SHAPES

if TYPE_CHECKING:
    from collections.abc import Sequence

TESTS = "tests"
"""The section that is no part of the worker: pytest runs it."""


@dataclass(frozen=True, slots=True)
class GpuBench:
    """Settings of one run: JSON for the worker."""

    device: str = "cuda"
    """As of `EngineConfig`: cuda, cuda:N, or cpu to try the command itself."""
    model: str = "random:llama-8b"
    """The model of most sections, a name of `random_model.SHAPES`."""
    small_model: str = "random:llama-1b"
    biased_model: str = "random:qwen2-0.5b"
    """One whose projections have biases."""
    dtype: str = "bfloat16"
    batches: tuple[int, ...] = (1, 8, 64, 256)
    """Streams that decode together."""
    contexts: tuple[int, ...] = (128, 2048, 16384)
    """Tokens behind which they decode."""
    prompt_tokens: tuple[int, ...] = (2048, 8192)
    """Lengths of prompts whose computing is timed."""
    crowd: int = 64
    """Streams of the sections about many streams."""
    output: int = 32
    """Tokens that a timed decode counts."""
    newcomer: int = 2048
    """Tokens of the prompt that lands among decoding streams."""
    seconds: float = 560.0
    """For all sections together."""
    moment: float = 0.3
    """Seconds that one kernel is measured for."""
    buffer_bytes: int = 4 << 30
    """Memory that the bandwidth is measured with."""
    product_size: int = 8192
    """Side of the square matrices whose product is timed."""

    @classmethod
    def small(cls, device: str, model: str, seconds: float) -> GpuBench:
        """For a CPU: all sections in seconds, on a model of two layers; its figures say nothing."""
        return cls(
            device=device, model=model, small_model=model, biased_model="random:qwen2-tiny", dtype="float32",
            batches=(1, 3), contexts=(20, 40), prompt_tokens=(32,), crowd=3, output=3, newcomer=40, seconds=seconds,
            moment=0.01, buffer_bytes=1 << 20, product_size=64,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the run."""

    name: str
    title: str
    """What it measures, for people."""
    seconds: float
    """After which it is ended."""
    alone: bool = False
    """True if it gets a process of its own, without what the sections before it left in memory."""
    needs: str = ""
    """A section without which it cannot work: where that failed, the time is for others."""


SECTIONS: tuple[Section, ...] = (
    Section(TESTS, "the tests marked cuda", 180),
    Section("ceilings", "bandwidth and products of the device", 40),
    Section("selfcheck", "errors of logprobs against float32", 90),
    Section("small", "decode steps of the smaller model", 60),
    Section("load", "loading, attention, graphs, blocks", 120),
    Section("decode", "decode steps: graph, runner, engine", 150, needs="load"),
    Section("bits", "equal bits of single rows", 60),
    Section("profile", "kernels of one graph", 40, needs="load"),
    Section("stages", "decode attention by pipeline stages", 60),
    Section("prefill", "prompts and their attention", 60, needs="load"),
    Section("samplers", "ways to sample", 60, needs="load"),
    Section("arrival", "a prompt that lands among streams", 60, needs="load"),
    Section("host", "the engine's own time a step, as lab host", 60),
    Section("transformers", "transformers on the same weights", 120, alone=True),
    Section("deterministic", "--deterministic, alone and in a crowd", 120, alone=True),
    Section("bias", "--deterministic with biases", 90),
    Section("second_load", "a model loaded again after closing it", 90),
    Section("fp8", "weights, keys and values in fp8", 120, alone=True),
)
"""In the order in which they run: by what they are worth where time runs out."""


def chosen(names: Sequence[str]) -> tuple[Section, ...]:
    """The sections of these names, in their order; all for none. Raises `UsageError` for an unknown name."""
    known = [section.name for section in SECTIONS]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"there is no section {unknown[0]!r}", f"known: {', '.join(known)}")
    return tuple(section for section in SECTIONS if not names or section.name in names)


def check_model(name: str) -> None:
    """Raise `UsageError` for a name that is no random model."""
    if name.removeprefix(PREFIX) not in SHAPES or not name.startswith(PREFIX):
        raise UsageError(f"{name!r} is no random model", f"known: {', '.join(PREFIX + one for one in SHAPES)}")
