"""`lab gateway` as a process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conftest import Run


def test_a_card_and_a_line(lab: Run) -> None:
    """The card has a row a gateway, the last line is the outcome; nothing of a provider is left behind."""
    done = lab("gateway", "--requests", "10", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    *card, line = done.stdout.splitlines()
    assert {"forwarder", "lmtool"} <= {row.split()[0] for row in card if row}
    assert set(json.loads(line)["results"]) == {"forwarder", "lmtool", "lmtool (OpenAI)"}


def test_no_litellm(lab: Run) -> None:
    """One sentence about the Python that cannot be started, and no traceback."""
    done = lab("gateway", "--litellm", "/no/such/python")
    assert "cannot start '/no/such/python'" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode not in {0, 1}
