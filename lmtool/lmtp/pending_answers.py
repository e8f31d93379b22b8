"""Questions of a client that wait for their answers, such as MODEL_INFO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmtool.errors import LmtoolError

if TYPE_CHECKING:
    import asyncio


class PendingAnswers:
    """Futures by the questions' keys. Belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._futures: dict[str, asyncio.Future[object]] = {}

    async def wait(self, key: str) -> Any:  # noqa: ANN401  # JSON
        """The answer to a question. Raises the error that it is answered with."""
        answer = self._futures[key] = self._loop.create_future()
        try:
            return await answer
        finally:
            del self._futures[key]

    def settle(self, key: str | None, answer: object) -> None:
        """Give a question its answer, an `LmtoolError` where it failed; harmless for one that nobody waits for."""
        future = self._futures.get(key) if key is not None else None
        if future is None or future.done():
            return
        if isinstance(answer, LmtoolError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
