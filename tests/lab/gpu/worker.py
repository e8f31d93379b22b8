"""The program that runs sections of `lab gpu`: names come on stdin, what was measured goes out as JSON lines.

Argument: the settings as JSON. Each line out is an object: `ready` first (the machine), then `part` (some of a
section's result, once it is known), and `done` (seconds) or `failed` (what happened, and whether the device still
works).
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import logging
import os
import platform
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from lmtool.measure.bench.peers.worker import answer_stream
from tests.lab.gpu.settings import GpuBench

if TYPE_CHECKING:
    from typing import TextIO

    from tests.lab.gpu.sections.bench import Bench

PLACES = {
    "ceilings": ("kernels", "ceilings"),
    "selfcheck": ("models", "selfcheck"),
    "small": ("steps", "small"),
    "load": ("steps", "load"),
    "decode": ("steps", "decode"),
    "bits": ("kernels", "bits"),
    "profile": ("steps", "profile"),
    "stages": ("kernels", "stages"),
    "prefill": ("streams", "prefill"),
    "samplers": ("streams", "samplers"),
    "arrival": ("streams", "arrival"),
    "host": ("streams", "host"),
    "transformers": ("models", "transformers"),
    "deterministic": ("models", "deterministic"),
    "bias": ("models", "bias"),
    "second_load": ("models", "second_load"),
    "fp8": ("models", "fp8"),
}
"""Section to its module in `sections`, and its function."""
TRACEBACK_LINES = 25
PACKAGES = ("torch", "transformers", "triton", "flash_attn_interface", "flashinfer", "numpy")


def main(words: list[str]) -> None:
    """Run sections until the end of stdin, or until one fails: what it left behind would be measured with the next."""
    settings = GpuBench(**{name: _tupled(value) for name, value in json.loads(words[0]).items()})
    wire = answer_stream()
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)  # where it stands when its time is over
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    try:
        import torch

        from tests.lab.gpu.sections.bench import Bench

        bench = Bench(settings)
    except Exception as problem:  # noqa: BLE001  # whatever it is, the program that started this one reports it
        _send(wire, {"failed": _failure(problem), "healthy": False})
        return
    _send(wire, {"ready": _machine(bench)})
    with torch.inference_mode():
        for line in sys.stdin:
            if not _ran(bench, line.strip(), wire):
                break
        # No engine is closed: the process ends, and with it what may be stuck.
    wire.flush()
    sys.stderr.flush()
    os._exit(0)


def _ran(bench: Bench, name: str, wire: TextIO) -> bool:
    """Run a section; False where the process is to end."""
    from tests.lab.gpu.sections.kernels import LeftOut

    began = time.perf_counter()
    module, function = PLACES[name]
    try:
        run = getattr(importlib.import_module(f"tests.lab.gpu.sections.{module}"), function)
        for part in run(bench):
            _send(wire, {"part": part})
    except LeftOut as reason:
        _send(wire, {"part": {"left_out": str(reason)}})
    except Exception as problem:  # noqa: BLE001  # as above
        _send(wire, {"failed": _failure(problem), "healthy": bench.device.healthy()})
        return False
    _send(wire, {"done": time.perf_counter() - began})
    return True


def _machine(bench: Bench) -> dict[str, Any]:
    found = {name: _version(name) for name in PACKAGES}
    return {
        "device": bench.device.describe(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "processor": _processor(),
        "packages": {name: version for name, version in found.items() if version},
    }


def _version(name: str) -> str | None:
    try:
        return str(getattr(importlib.import_module(name), "__version__", "without a version"))
    except ImportError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123  # no file of ours
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        return platform.processor()


def _failure(problem: BaseException) -> dict[str, Any]:
    lines = "".join(traceback.format_exception(problem)).splitlines()
    return {"error": f"{type(problem).__name__}: {problem}"[:2000], "traceback": lines[-TRACEBACK_LINES:]}


def _tupled(value: Any) -> Any:  # JSON
    return tuple(value) if isinstance(value, list) else value


def _send(wire: TextIO, answer: dict[str, Any]) -> None:
    wire.write(json.dumps(answer, default=str) + "\n")
    wire.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
