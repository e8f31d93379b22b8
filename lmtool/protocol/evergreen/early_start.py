"""Computes the beginning of a prompt while the rest of it is on its way (rule 25)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError
from lmtool.core.interfaces import tokenizer_of
from lmtool.core.types import GenerateRequest
from lmtool.inference.text.prompts import beginning_ids
from lmtool.inference.text.workers import prompt_size, run_in_worker

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from lmtool.core.interfaces import StreamHandle, Tokenizer, TokenModel
    from lmtool.core.types import TokenOutput
    from lmtool.protocol.evergreen.prompts import PromptBuilder

MIN_BYTES = 256
"""The prompt is looked at again once it has grown by so much, so that a text in single words is not read for each."""
MAX_READ = 16
"""Times its length that a prompt is read at most for this, so that one sent in small pieces costs no more than that."""
_FREE_BYTES = 64 * 1024
"""Read without counting."""
MIN_TOKENS = 64
"""Fewer new ids are not worth a request."""


class EarlyStart:
    """One prompt's early start: call `grew` as it grows, `stop` once it is whole, `close` at the end.

    Each request draws nothing (`GenerateRequest.prefill_only`), runs behind all others, and is one at a time. Whatever
    fails here fails nothing else: what is not computed ahead is computed later.
    """

    def __init__(self, model: TokenModel, name: str | None, builder: PromptBuilder, client: Hashable) -> None:
        """name: of the served model. client: whose prompt it is, see `interfaces.client_of`."""
        self.client = client
        self._model = model
        self._name = name
        self._builder = builder
        self._growth = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._prefill: StreamHandle | None = None
        """The last request."""
        self._last: asyncio.Future[TokenOutput] | None = None
        """Its end."""
        self.computed = 0
        """Ids that were asked to be computed so far."""

    def grew(self) -> None:
        """The builder has more. Work begins only when the caller waits for something, so not for a whole prompt."""
        self._growth.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Compute nothing more ahead; what is being computed now is kept for the prompt that is sent next."""
        if self._prefill is not None:
            self._prefill.pause()  # a step of a stream that is cancelled would have been computed in vain
        if self._task is None:
            return
        self._task.cancel()
        (failure,) = await asyncio.gather(self._task, return_exceptions=True)
        if isinstance(failure, Exception):
            problem = {"message": "a prompt was not computed ahead", "exception": failure}
            asyncio.get_running_loop().call_exception_handler(problem)

    def close(self) -> None:
        """Give up what was not computed."""
        if self._prefill is not None:
            self._prefill.cancel()

    async def _run(self) -> None:
        tokenizer = tokenizer_of(self._model, self._name)
        seen = read = 0
        while tokenizer is not None:
            await self._growth.wait()
            self._growth.clear()
            size = self._builder.size
            if size < seen + MIN_BYTES or read + size > MAX_READ * size + _FREE_BYTES or not self._builder.has_content:
                continue
            seen, read = size, read + size
            ids = await self._beginning(tokenizer)
            if len(ids) >= self.computed + MIN_TOKENS:
                self.computed = len(ids)
                if (await self._compute(ids)).error is not None:
                    return

    async def _beginning(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The ids that the prompt begins with whatever follows; none where it cannot be told."""
        prompt, closed = self._builder.prompt(), self._builder.closed
        try:
            return await run_in_worker(prompt_size(prompt), beginning_ids, tokenizer, prompt, closed=closed)
        except LmtoolError:  # the whole prompt may be another matter, and has its own error
            return ()

    async def _compute(self, ids: tuple[int, ...]) -> TokenOutput:
        """Have them computed; the end of that."""
        self._last = asyncio.get_running_loop().create_future()
        request = GenerateRequest("ahead", ids, model=self._name, prefill_only=True)
        self._prefill = self._model.submit(request, self)
        return await self._last

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        """Take the outputs of one step, see `Sink`."""
        if self._last is not None and not self._last.done():
            self._last.set_result(outputs[-1])
