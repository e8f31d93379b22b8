"""The server of the demo."""

from __future__ import annotations

import time

from lmtool.api import connect
from lmtool.cli.inspecting.demo_server import demo_server


async def test_the_embedded_model_at_a_pace() -> None:
    """It says how far it is, answers, and takes its time for each token."""
    said: list[str] = []
    async with demo_server(said.append, pace=50.0) as url, connect(url) as model:
        assert said[-1] == "lmtool-tiny: ready"
        began = time.monotonic()
        outputs = [output async for output in model.generate("Tell me a story about a fox.", max_tokens=8)]
        assert len(outputs) == 8
        assert time.monotonic() - began >= 7 * 0.7 / 50
