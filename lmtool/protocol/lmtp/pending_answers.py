"""Questions of a client that wait for their answers, such as MODEL_INFO."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import LmtoolError, TimeLimitError
from lmtool.protocol.lmtp.messages import Progress, Watched

if TYPE_CHECKING:
    from lmtool.protocol.lmtp.notices import Notice
    from lmtool.protocol.lmtp.wait_limits import WaitLimits


class PendingAnswers:
    """Futures by the questions' keys. Belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: WaitLimits, *, starting: bool = False) -> None:
        """starting: whether the server is a process that only starts now."""
        self._loop = loop
        self._wait_limits = limits
        self._starting = starting
        self._futures: dict[str, asyncio.Future[object]] = {}
        self._limits: dict[str, asyncio.Timeout] = {}

    async def wait(self, key: str) -> Any:  # noqa: ANN401  # JSON
        """The answer to a question. Raises the error that it is answered with, or `TimeLimitError`."""
        limits = self._wait_limits
        seconds = limits.load if self._starting else limits.answer
        answer = self._futures[key] = self._loop.create_future()
        try:
            async with asyncio.timeout(seconds) as self._limits[key]:
                return await answer
        except TimeoutError:
            raise TimeLimitError(f"the server has sent no answer within {seconds:g} s") from None
        finally:
            del self._futures[key], self._limits[key]

    def note(self, notice: Notice) -> None:
        """Wait longer for an answer where a load is reported; the first answer to WATCH settles it."""
        self._starting, key = False, notice.stream_id
        if isinstance(notice, Watched):
            self.settle(key, None)
        elif isinstance(notice, Progress) and key in self._limits and not self._futures[key].done():
            self._limits[key].reschedule(self._loop.time() + self._wait_limits.load)

    def settle(self, key: str | None, answer: object) -> None:
        """Give a question its answer, an `LmtoolError` where it failed; harmless for one that nobody waits for."""
        self._starting = False
        future = self._futures.get(key) if key is not None else None
        if future is None or future.done():
            return
        if isinstance(answer, LmtoolError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
