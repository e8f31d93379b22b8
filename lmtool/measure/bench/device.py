"""All calls of torch that only a GPU has: events, profiler, memory, waiting; on a CPU plain answers to the same.

Nothing else of `bench gpu` and `bench engine` calls `torch.cuda`.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import subprocess
import threading
import time
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WARM_RUNS = 3
MOST_RUNS = 400


class Device:
    """The device under test."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        if self.cuda:
            torch.cuda.set_device(device)

    def describe(self) -> dict[str, Any]:
        """Name, memory in bytes, compute capability, driver, clocks; of a CPU its name only."""
        if not self.cuda:
            return {"name": "cpu"}
        found = torch.cuda.get_device_properties(self.device)
        return {
            "name": found.name,
            "memory_bytes": found.total_memory,
            "capability": f"{found.major}.{found.minor}",
            "multiprocessors": found.multi_processor_count,
            "cuda": torch.version.cuda,
            "nvidia_smi": _nvidia_smi(),
        }

    def wait(self) -> None:
        """Return when the device has done all that is queued."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def healthy(self) -> bool:
        """True if the device still computes: an illegal access, for one, leaves a process without it."""
        try:
            self.wait()
            return bool((torch.ones(8, device=self.device) + 1).sum().item() == 16)
        except RuntimeError:
            return False

    def free_bytes(self) -> int | None:
        """Memory that nobody has, after giving back what is only cached; None on a CPU."""
        gc.collect()
        if not self.cuda:
            return None
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device)[0])

    def peak_bytes(self) -> int | None:
        """Most memory of torch's tensors so far; None on a CPU."""
        return int(torch.cuda.max_memory_allocated(self.device)) if self.cuda else None

    def times(self, work: Callable[[], object], seconds: float) -> Times:
        """How long `work` takes on the device, run after run for about this long.

        On a GPU all runs are queued without waiting in between: what the host does meanwhile counts only where it is
        slower than the device.
        """
        for _ in range(WARM_RUNS):
            work()
        self.wait()
        began = time.perf_counter()
        work()
        self.wait()
        runs = max(3, min(MOST_RUNS, int(seconds / max(time.perf_counter() - began, 1e-6))))
        return Times(self._event_times(work, runs) if self.cuda else _clock_times(work, runs))

    def _event_times(self, work: Callable[[], object], runs: int) -> list[float]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(runs + 1)]
        events[0].record()
        for event in events[1:]:
            work()
            event.record()
        events[-1].synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(events)]

    def host_seconds(self, work: Callable[[], object], runs: int = 20) -> float:
        """Median time until `work` returns, with nothing queued before it: what the host needs to launch it."""
        durations = []
        for _ in range(runs):
            self.wait()
            began = time.perf_counter()
            work()
            durations.append(time.perf_counter() - began)
        self.wait()
        return sorted(durations)[runs // 2]

    def profile(self, work: Callable[[], object], runs: int = 5) -> list[dict[str, Any]]:
        """The kernels of one run of `work`, the longest first: `name`, `us` and `calls` a run.

        On a CPU torch's operators. Empty where the profiler sees none, such as in a container without the right to.
        """
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.cuda else [])]
        work()
        self.wait()
        with profile(activities=kinds) as profiler:
            for _ in range(runs):
                work()
            self.wait()
        rows = []
        for own in profiler.key_averages():
            kind = str(getattr(own, "device_type", "CPU")).rpartition(".")[2]  # torch exports its class nowhere
            if (kind == "CUDA") != self.cuda:
                continue
            spent = own.self_device_time_total if self.cuda else own.self_cpu_time_total
            rows.append({"name": own.key[:120], "us": spent / runs, "calls": own.count / runs})
        return sorted((row for row in rows if row["us"]), key=lambda row: -row["us"])


@dataclass(frozen=True, slots=True)
class Times:
    """Durations of equal runs, in seconds."""

    each: list[float]

    @property
    def median(self) -> float:
        """The one in the middle."""
        return sorted(self.each)[len(self.each) // 2]

    @property
    def least(self) -> float:
        """The shortest."""
        return min(self.each)


def _clock_times(work: Callable[[], object], runs: int) -> list[float]:
    durations = []
    for _ in range(runs):
        began = time.perf_counter()
        work()
        durations.append(time.perf_counter() - began)
    return durations


def _nvidia_smi() -> str | None:
    """Driver, power limit and clocks, as the driver's own program says them."""
    fields = "driver_version,power.limit,clocks.max.sm,clocks.max.memory,temperature.gpu,ecc.mode.current"
    words = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603  # fixed words
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@dataclass(slots=True)
class Waits:
    """Seconds that each thread has spent waiting for events of the device, while `counted`."""

    by_thread: dict[int, float] = field(default_factory=dict)

    def of(self, thread: int) -> float:
        """Of the thread with this identity."""
        return self.by_thread.get(thread, 0.0)

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count, by every `Event.synchronize` of torch; the engine has no other call that waits."""
        plain = torch.cuda.Event.synchronize

        def synchronize(event: Any) -> None:
            began, own = time.perf_counter(), threading.get_ident()
            plain(event)
            self.by_thread[own] = self.by_thread.get(own, 0.0) + time.perf_counter() - began

        event_class: Any = torch.cuda.Event
        event_class.synchronize = synchronize
        try:
            yield
        finally:
            event_class.synchronize = plain


@contextlib.contextmanager
def watched_syncs(device: torch.device) -> Iterator[list[str]]:
    """Where torch waited for the device inside an operator, such as `tolist` of a tensor there: a line for each.

    Waiting for an event is not among them. Empty on a CPU.
    """
    lines: list[str] = []
    if device.type != "cuda":
        yield lines
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            torch.cuda.set_sync_debug_mode("warn")
            yield lines
        finally:
            torch.cuda.set_sync_debug_mode("default")
    lines += [
        f"{one.filename.rpartition('/')[2]}:{one.lineno}"
        for one in caught
        if "called a synchronizing" in str(one.message)
    ]


class Compiled:
    """Kernels that Triton compiled, or took from its folder, in threads of an engine: each stalls all streams."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.seconds = 0.0
        self._began = 0.0
        try:
            from triton import knobs
        except ImportError:
            return
        knobs.runtime.jit_cache_hook = self._begin
        knobs.runtime.jit_post_compile_hook = self._end

    def _begin(self, **_: Any) -> None:
        self._began = time.perf_counter()

    def _end(self, **what: Any) -> None:
        if threading.current_thread().name.startswith("engine "):
            self.names.append(str(what.get("repr", "?"))[:200])
            self.seconds += time.perf_counter() - self._began
