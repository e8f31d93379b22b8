"""Servers with one fault each: the check that is there for it finds it."""

from __future__ import annotations

import pytest

from lmtool.protocol.lmtp.endpoint import SocketEndpoint, parse
from tests.measure.audit.faults import FAULTS
from tests.measure.audit.toy_server import audited, breaches, over_lmtp
from tests.protocol.lmtp.harness import serving


@pytest.mark.parametrize("name", FAULTS)
async def test_fault_is_found(name: str) -> None:
    """The finding says what is off, and which exchanges show it."""
    fault = FAULTS[name]
    findings = await audited(fault.application(), fault.route, claim=fault.claim, only=fault.finds)
    found = [one for one in findings.values() if one.verdict == "breach"]
    assert found
    assert all(one.exchanges for one in found)


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("processed where raw is claimed", "raw_or_processed"),
        ("base-2 logarithms", "calibration"),
        ("a crowd changes numbers", "concurrency"),
        ("prompts are scored otherwise", "prompt_logprobs"),
    ],
)
async def test_fault_is_found_over_lmtp(name: str, check: str) -> None:
    """So it is over LMTP, where the fault is the model's and not the HTTP face's."""
    async with serving(FAULTS[name].model()) as served:  # type: ignore[arg-type] # what the server needs of it
        endpoint = parse(served.url)
        assert isinstance(endpoint, SocketEndpoint)
        assert check in breaches(await over_lmtp(endpoint, (check,)))
