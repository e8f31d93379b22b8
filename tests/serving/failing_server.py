"""`lmtool` whose device is lost at a prompt of more than 300 tokens. For tests of what becomes of the process."""

from __future__ import annotations

from typing import Any

from lmtool.inference.engine import device
from lmtool.inference.engine.model_runner import ModelRunner

DEADLY = 300


def lose_device() -> None:
    """Let this process take the failure of a step for the loss of its device."""
    run = ModelRunner.run

    def failing(self: ModelRunner, plan: Any) -> Any:
        if any(span.sequence.prompt_length > DEADLY for span in plan.spans):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return run(self, plan)

    setattr(ModelRunner, "run", failing)  # noqa: B010  # what it is would be checked else
    setattr(device, "is_lost", lambda *_: True)  # noqa: B010


if __name__ == "__main__":
    from lmtool.cli.main import main

    lose_device()
    main()
