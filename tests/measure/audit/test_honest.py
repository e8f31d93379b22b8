"""Servers that are honest: no check finds anything, whatever the model's numbers are."""

from __future__ import annotations

import pytest

from lmtool.measure.audit.http_wire import Route
from lmtool.protocol.lmtp.endpoint import SocketEndpoint, parse
from tests.measure.audit.faults import sampled
from tests.measure.audit.toy_model import ToyModel
from tests.measure.audit.toy_server import application, audited, breaches, over_lmtp
from tests.protocol.lmtp.harness import serving


@pytest.mark.parametrize(("seed", "route"), [(1, "completions"), (2, "chat")])
async def test_raw(seed: int, route: Route) -> None:
    """Nothing is found on either route, and all that the server has is asked."""
    findings = await audited(application(ToyModel(seed)), route)
    assert breaches(findings) == {}
    assert findings["raw_or_processed"].sentence.startswith("raw")
    skipped = {name for name, one in findings.items() if one.verdict == "not offered"}
    assert skipped == {"full_vocabulary", "constraint", "logprobs_mode", *(("echo",) if route == "chat" else ())}


async def test_processed() -> None:
    """Logprobs of what is sampled from are true too, until somebody claims that they are raw."""
    app = application(ToyModel(3, rewrite=sampled(logprobs_mode="processed")))
    findings = await audited(app)
    assert breaches(findings) == {}
    assert findings["raw_or_processed"].sentence.startswith("processed")
    assert breaches(await audited(app, claim="raw", only=("raw_or_processed",))) == {
        "raw_or_processed": "they are processed; claimed is raw"
    }


async def test_flat_and_peaked() -> None:
    """Nearly uniform distributions, and nearly certain ones: what they do not show is said, and nothing is found."""
    for spread in (0.003, 6.0):
        only = (
            "temperature",
            "top_p",
            "top_k",
            "penalties",
            "raw_or_processed",
            "calibration_sharpened",
            "calibration",
            "n",
            "seed",
        )
        assert breaches(await audited(application(ToyModel(4, spread=spread)), only=only)) == {}


async def test_lmtp() -> None:
    """Over LMTP the whole vocabulary may be asked for, and each kind of logprobs."""
    model = ToyModel(5)
    async with serving(model) as served:  # type: ignore[arg-type] # what the server needs of it
        endpoint = parse(served.url)
        assert isinstance(endpoint, SocketEndpoint)
        findings = await over_lmtp(endpoint)
    assert breaches(findings) == {}
    assert (
        findings["logprobs_mode"].verdict
        == findings["raw_or_processed"].verdict
        == findings["prompt_logprobs"].verdict
        == "pass"
    )
    assert findings["stream"].sentence == "every answer of LMTP is a stream"
