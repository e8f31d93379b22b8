"""Requests of coding agents as the programs sent them: texts cut short, ids and paths replaced, few tools kept.

Each file of `tests/data/agents` has a first request, one with the result of a tool, and one with a call that the model
did not end. `tests/peer/test_coding_agents.py` runs the programs themselves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[2] / "data" / "agents"
RECORDED = [
    (recorded["path"], body)
    for file in sorted(_FOLDER.glob("*.json"))
    for recorded in [json.loads(file.read_text("utf-8"))]
    for body in recorded["bodies"]
]
"""Path and body of each request."""


def events_of(stream: str) -> list[Any]:
    """The events of a stream of any of these APIs."""
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def text_of(path: str, answer: Any) -> str:
    """The text of an answer, whole or as the events of a stream."""
    if isinstance(answer, list) and path.endswith("messages"):
        return "".join(one["delta"].get("text", "") for one in answer if one["type"] == "content_block_delta")
    if isinstance(answer, list):
        answer = answer[-1]["response"]
    parts = answer["content"] if path.endswith("messages") else answer["output"][-1]["content"]
    return "".join(part["text"] for part in parts)


def warnings_of(path: str, answer: Any) -> list[str]:
    """The warnings of such an answer."""
    if isinstance(answer, list) and path.endswith("messages"):
        [answer] = [one for one in answer if one["type"] == "message_delta"]
    elif isinstance(answer, list):
        answer = answer[-1].get("response", answer[-1])
    found: list[str] = answer.get("warnings", [])
    return found
