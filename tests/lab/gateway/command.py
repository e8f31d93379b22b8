"""`lab gateway`: what a gateway costs, beside a bare forwarder and LiteLLM's proxy."""

from __future__ import annotations

from lmtool.cli.bench import Report
from lmtool.cli.common_options import Common
from lmtool.settings.option import option

LOAD = "Load"


async def gateway(
    common: Common,
    *,
    requests: int = option(1000, "Requests to each, in each round.", LOAD, metavar="N", minimum=10),
    concurrency: int = option(32, "Requests at once while CPU time is measured.", LOAD, metavar="N", minimum=1),
    rounds: int = option(3, "Rounds of all gateways.", LOAD, metavar="N", minimum=1),
    stream: bool = option(False, "Ask for streamed answers.", LOAD),
    litellm: str | None = option(None, "Python of an environment with litellm[proxy].", LOAD, metavar="PYTHON"),
    report: Report,
) -> None:
    """Measure our gateway, a bare forwarder and LiteLLM's proxy before the same provider, which answers at once.

    Shows CPU time a request, latency added to the provider's own, start and memory. All processes run on this machine.
    """
    from lmtool.serving.composition import need_gateway_packages

    need_gateway_packages()
    from tests.lab.gateway.run import GatewayBench, as_outcome, gateway_card, run

    out = common.output()
    before = report.before("gateway")
    measured = await run(GatewayBench(requests, concurrency, rounds, stream, litellm), out.note)
    report.finish(out, lambda _columns: gateway_card(measured), as_outcome(measured), before)
