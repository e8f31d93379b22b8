"""Action Engine's TypeScript client, unchanged, holds conversations with our server over its `evergreen` backend.

    git clone https://github.com/google-deepmind/actionengine-ts && cd actionengine-ts
    git checkout d91940a && npm install --omit=dev
    LMTOOL_ACTIONENGINE_TS=$PWD pytest -m peer tests/peer/test_actionengine.py

Needs node 20 or later.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import lmtool

VARIABLE = "LMTOOL_ACTIONENGINE_TS"
SCRIPT = Path(__file__).parent / "actionengine_client.mjs"
CONVERSATIONS = [
    [["Once ", "upon", " a"], [" Then"]],
    [["The capital of France is"], [" Its"]],
    [["Hello", "!"], [" And you?"]],
    [["One, two, ", "three"], [","]],
    [["Where ", "is ", "the ", "dog?"], [" And the cat?"]],
]
"""The words of a first turn, and those that follow its answer."""

pytestmark = pytest.mark.peer


async def test_five_conversations(embedded):
    """Each is a session of two turns, all at once; its answers are those that our own client gets."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        pytest.skip(f"{VARIABLE} names no checkout of actionengine-ts")
    command = ["node", str(SCRIPT), f"{folder}/dist/actionengine.node.js", f"{embedded}evergreen"]
    done = subprocess.run(
        command, input=json.dumps(CONVERSATIONS), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout)
    assert len(answers) == 5
    async with lmtool.session(embedded) as session:
        for (first, second), (answer, reply) in zip(CONVERSATIONS, answers, strict=True):
            assert "".join([piece async for piece in session.generate("".join(first))]) == answer
            whole = "".join([*first, answer, *second])
            assert "".join([piece async for piece in session.generate(whole)]) == reply
