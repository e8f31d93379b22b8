"""What is logged for machines: names, counts and times, and nothing that a client has written."""

from __future__ import annotations

from lmtool.net.access.caller import Callers, current_caller
from lmtool.net.access.key_file import parse_keys
from lmtool.net.telemetry.request_log import COMMANDS, LONGEST, HttpLog, RequestLog, without_content
from lmtool.net.telemetry.trace_context import TraceContext, current_trace
from lmtool.protocol.lmtp.request_fields import KNOWN
from tests.net.telemetry.test_trace_context import GOOD

CANARY = "canary-secret"


def test_an_error_of_the_request_is_logged_by_its_code_alone() -> None:
    """Its sentence quotes the request. What the server failed at is said in full."""
    refused = RequestLog(1, "7", "GENERATE", error=f"prompt is {CANARY!r}", error_code="invalid_request")
    assert without_content(refused)["error_code"] == "invalid_request"
    unread = RequestLog(1, "null", CANARY, error=f"{CANARY} is no command", ignored=("top_a", f"{CANARY}!"))
    fields = without_content(unread)
    assert (fields["command"], fields["error_code"], fields["ignored"]) == ("other", "invalid_request", ["top_a"])
    assert CANARY not in f"{without_content(refused)}{fields}"
    unknown = without_content(RequestLog(1, "7", "GENERATE", CANARY, error=CANARY, error_code="not_found"))
    assert CANARY not in str(unknown)
    ours = RequestLog(1, "7", "GENERATE", error="the device ran out of memory", error_code="out_of_memory")
    assert without_content(ours)["error"] == "the device ran out of memory"


def test_every_command_is_called_by_its_name() -> None:
    """Those of LMTP; anything else that a client writes in their place is `other`."""
    assert KNOWN.keys() == COMMANDS


def test_what_a_client_has_chosen_is_bounded() -> None:
    """Ids, names and paths."""
    entry = without_content(RequestLog(1, "x" * 1000, "GENERATE", "m" * 1000, end="stop"))
    assert (len(entry["stream_id"]), len(entry["model"])) == (LONGEST, LONGEST)
    assert len(without_content(HttpLog("GET", "/" + "x" * 1000, 404, 0.1))["path"]) == LONGEST


def test_key_and_trace_are_those_of_the_context() -> None:
    """Whatever is logged while a request is answered has the name of its key and its trace; other things have none."""
    callers = Callers(parse_keys(f'[[keys]]\nname = "alice"\nkey = "{CANARY}"\n', "keys.toml"))
    caller = current_caller.set(callers.caller(callers.ring.keys[0], None))
    trace = current_trace.set(TraceContext(GOOD))
    inside = without_content(RequestLog(1, "7", "GENERATE", end="stop"))
    current_trace.reset(trace)
    current_caller.reset(caller)
    assert (inside["key"], inside["traceparent"]) == ("alice", GOOD)
    outside = without_content(RequestLog(1, "7", "GENERATE", end="stop"))
    assert {"key", "traceparent"}.isdisjoint(outside)
