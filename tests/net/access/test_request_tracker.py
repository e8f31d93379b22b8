"""Which requests are being answered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lmtool.net.access.request_tracker import RequestTracker

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def waiting_for(gate: asyncio.Event, *, fails: bool = False) -> ASGIApp:
    """An application that answers when the gate opens."""

    async def app(*_: Any) -> None:
        await gate.wait()
        if fails:
            raise ConnectionResetError

    return app


async def begun(app: ASGIApp) -> asyncio.Task[None]:
    task = asyncio.ensure_future(app({}, None, None))  # type: ignore[arg-type] # never used
    await asyncio.sleep(0)
    return task  # type: ignore[return-value] # an awaitable's task


async def test_requests_count_until_they_end() -> None:
    """However they end: answered, failed, or cancelled because the client is gone."""
    own, gate = RequestTracker(), asyncio.Event()
    answered, failed, gone = [await begun(own.around(waiting_for(gate, fails=fails))) for fails in (False, True, False)]
    assert own.count == 3
    gone.cancel()
    await asyncio.wait([gone])
    assert own.count == 2
    gate.set()
    await asyncio.wait([answered, failed])
    assert isinstance(failed.exception(), ConnectionResetError)
    assert own.count == 0


async def test_draining_waits() -> None:
    """What runs may end; whoever comes meanwhile can see it; nothing to wait for is no wait."""
    own, gate = RequestTracker(), asyncio.Event()
    assert not own.draining
    running = await begun(own.around(waiting_for(gate)))
    draining = asyncio.create_task(own.drain(30.0))
    await asyncio.sleep(0)
    assert own.draining
    gate.set()
    assert await draining
    await running
    assert await own.drain(30.0)


async def test_draining_has_a_limit() -> None:
    """Whether anything still runs is told."""
    own, gate = RequestTracker(), asyncio.Event()
    running = await begun(own.around(waiting_for(gate)))
    assert not await own.drain(0.01)
    gate.set()
    await running
