"""Measurements for developers: `python -m tests.lab NAME [OPTION...]`, from a checkout; alone it lists the names."""

from __future__ import annotations

import importlib
import runpy
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmtool.cli.app import build_entry, convert_without_pydantic
from lmtool.cli.commands import Command, Group

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Measurement(Command):
    """A measurement with options like those of `lmtool`: the function of its name in `tests.lab.NAME.command`."""

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        module = importlib.import_module(f"tests.lab.{self.module or self.name}.command")
        function: Callable[..., Any] = getattr(module, self.name)
        return function


MEASUREMENTS = (
    Measurement("gpu", "Test and measure lmtool on a GPU; all figures in one file."),
    Measurement("kernels", "Measure matrix products on this CPU, without a model."),
    Measurement("host", "Measure the engine's own time a step, without a model."),
    Measurement("soak", "Soak a server in faults and hostile frames; 1 if it breaks."),
    Measurement("gateway", "Measure the gateway beside a bare forwarder and LiteLLM."),
    Measurement("inspect", "Load the inspector: key delay, CPU, opening a long trace.", module="inspector"),
)
PROGRAMS = {
    "port": "Attack the port of serve, balance and gateway; memory, and how long another key waits.",
    "frames": "Send large LMTP requests; how long other streams wait.",
    "evergreen": "Send hostile Evergreen sessions; how long other streams wait.",
    "models": "Load and unload a large model beside the streams of another one.",
    "memory": "List what a server's memory consists of, under a mixed load.",
    "buffers": "Measure branches off a long buffer.",
    "resuming": "Cut a thousand connections; every stream resumes.",
    "kills": "Kill a worker of the balancer every second; every stream resumes.",
    "what_if": "Compare what-if numbers with the sampler over random steps.",
}
"""Name of a module here that is a program of its own, to what it does."""


def main() -> None:
    """Run the measurement that the command line names."""
    words = sys.argv[1:]
    if words and words[0] in PROGRAMS:
        sys.argv = [f"python -m tests.lab {words[0]}", *words[1:]]
        runpy.run_module(f"tests.lab.{words[0]}", run_name="__main__")
    elif words and not words[0].startswith("-"):
        convert_without_pydantic()
        chosen = tuple(one for one in MEASUREMENTS if one.name == words[0])
        group = build_entry(Group("lab", "Measurements for developers of lmtool.", chosen or MEASUREMENTS))
        group(words, prog_name="python -m tests.lab")
    else:
        names = {one.name: one.summary for one in MEASUREMENTS} | PROGRAMS
        width = max(map(len, names))
        sys.stdout.writelines(f"{name:{width}}  {summary}\n" for name, summary in names.items())


if __name__ == "__main__":
    main()
