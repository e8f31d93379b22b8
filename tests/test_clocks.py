"""Clocks: what waits, ends or expires counts by a monotonic one, since the time of day may jump."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "lmtool"
READERS = {
    "measure/audit/http_transport.py": "a server may name the time of day at which it is to be asked again",
    "measure/bench/result.py": "a result says when it was measured",
    "terminal/chat/conversation_recorder.py": "a conversation and its trace say when it began",
    "cli/trace/record.py": "a trace says when it was recorded, and its file is named after that",
    "gateway/pools/cache.py": "a file of answers outlives the process and its monotonic clock",
    "gateway/pools/http_backend.py": "a provider may name the time of day at which it is to be asked again",
    "gateway/pools/litellm_backend.py": "the same",
    "gateway/pools/unified_replies.py": "an answer says when it was made",
    "protocol/http/responses/replies.py": "the same",
    "protocol/http/server.py": "the same",
    "serving/console.py": "a line of the log has the time of day",
    "inference/text/chat_template.py": "chat templates may ask for the date",
    "trace/recorder.py": "a trace says when it was recorded, and its file is named after that",
    "terminal/tui/actions/exports.py": "an export is named after its time",
    "terminal/tui/app.py": "there is one tip a day",
    "terminal/tui/sources/event_pipeline.py": "a trace says when it was recorded",
}
"""Modules that read the time of day, and what for; none decides by it how long something takes."""
NAMES = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime"}
OWNERS = {"time", "datetime", "date"}


def reads_time_of_day(module: Path) -> bool:
    """Whether the module calls a clock of the day, or takes one by its name."""
    for node in ast.walk(ast.parse(module.read_text())):
        named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if named and node.value.id in OWNERS and node.attr in NAMES:
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "time" and NAMES & {one.name for one in node.names}:
            return True
    return False


def test_who_reads_the_time_of_day() -> None:
    """Nobody but those who show it to somebody, or get it from somebody."""
    found = {str(one.relative_to(PACKAGE)) for one in PACKAGE.rglob("*.py") if reads_time_of_day(one)}
    assert found == set(READERS)
