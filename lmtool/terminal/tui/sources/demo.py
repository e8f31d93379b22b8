"""The demo: four prompts that race on the embedded model, for use without a server."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.core.sampling_parameters import PROMPT_MAX_TOKENS
from lmtool.core.types import SamplingParams
from lmtool.terminal.tui.sources.connect import ConnectSource
from lmtool.terminal.tui.sources.requests import parse_prompt
from lmtool.trace.events import Remark

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from lmtool.core.interfaces import Sink, StreamHandle, TokenModel
    from lmtool.core.types import GenerateRequest, LoadProgress, ModelInfo, ScoreRequest, TokenOutput
    from lmtool.inference.text.tokenizer import TextTokenizer
    from lmtool.terminal.tui.request_builder import TextToScore
    from lmtool.terminal.tui.sources.event_pipeline import Feed

PROMPTS = (
    "Tell me a story about a fox.",
    "Tell me a story about a lighthouse.",
    "What is the capital of France?",
    "Tell me a story about a robot.",
)
SAMPLING = SamplingParams(max_tokens=PROMPT_MAX_TOKENS, temperature=0.9, top_logprobs=8, seed=1)
"""Default sampling of the demo's prompts."""

PACE = 24.0
"""Tokens a second that a stream of the demo gets: as many as eyes can follow."""


def racing(lines: Sequence[str] = PROMPTS, sampling: SamplingParams = SAMPLING) -> list[GenerateRequest]:
    """Requests for typed prompts, each with a different seed. Raises `UsageError`."""
    seeds = [None if sampling.seed is None else sampling.seed + lane for lane in range(len(lines))]
    return [parse_prompt(line, replace(sampling, seed=seed)) for line, seed in zip(lines, seeds, strict=True)]


class DemoSource(ConnectSource):
    """A `Source` that starts a server and sends prompts. Create it in a running event loop."""

    reason = "no server answers at the default address"
    """Reason for starting a server."""

    def __init__(
        self,
        server: Callable[[Callable[[str], None]], AbstractAsyncContextManager[str]],
        warn: Callable[[str], None],
        *,
        find_tokenizer: Callable[[ModelInfo], TextTokenizer | None],
        prompts: Sequence[GenerateRequest],
        scores: Sequence[TextToScore] = (),
        stay: bool = True,
    ) -> None:
        """Start nothing yet.

        server: starts one; is given a function for sentences on its progress; yields its URL. prompts: the race.
        scores: texts that are scored beside it. stay: whether `run` goes on after they have been answered.
        """
        super().__init__(None, warn, find_tokenizer=find_tokenizer, prompts=prompts, scores=scores, stay=stay)
        self._server = server
        self._stack = AsyncExitStack()

    async def run(self, feed: Feed) -> None:
        """Load the model, send the prompts, wait for further ones."""
        if self._requests is None:

            def note(sentence: str) -> None:
                feed([Remark(0.0, "note", 0, sentence)])

            note(f"{self.reason}: the embedded model is loaded here")
            self.connect_to(await self._stack.enter_async_context(self._server(note)))
        await super().run(feed)

    async def close(self) -> None:
        """End the streams, the recording, the server."""
        await super().close()
        await self._stack.aclose()


@asynccontextmanager
async def demo_server(note: Callable[[str], None], pace: float | Callable[[], float] = PACE) -> AsyncIterator[str]:
    """Serve the embedded model; its URL, once it answers. note: gets sentences on the way. pace: see `PacedModel`.

    Raises `ResourceError` where the packages are missing that serving needs.
    """
    from starlette.applications import Starlette

    from lmtool.inference.engine.config import EngineConfig
    from lmtool.net.access.policy import AccessPolicy
    from lmtool.protocol.lmtp.config import ServerConfig
    from lmtool.protocol.lmtp.plugs import Plugs
    from lmtool.protocol.lmtp.server import LmtpServer
    from lmtool.serving.composition import need_serve_packages
    from lmtool.serving.config import ListenConfig, ModelsConfig, ServiceConfig
    from lmtool.serving.frontends import http_server
    from lmtool.serving.listening import bind, url
    from lmtool.serving.model_names import threads_for
    from lmtool.serving.service import Service

    need_serve_packages()
    service = Service(ServiceConfig(ModelsConfig(), EngineConfig(threads=threads_for(None))))
    listen = ListenConfig(port=0)
    sockets = bind(listen)

    server = LmtpServer(Plugs(PacedModel(service.model, pace)))
    http = http_server(Starlette(routes=server.routes()), AccessPolicy(), ServerConfig())
    serving: asyncio.Task[None] | None = None
    try:
        await service.ready(loading_notes(note))
        serving = asyncio.create_task(http.serve(sockets))
        yield url(listen, sockets)
    finally:
        await server.drain(0)
        http.should_exit = True
        if serving is not None:
            await serving
        await service.close()


def loading_notes(note: Callable[[str], None]) -> Callable[[LoadProgress], None]:
    """Reports each phase of loading once, as a sentence."""
    last = ""

    def progress(now: LoadProgress) -> None:
        nonlocal last
        sentence = f"{now.model}: {now.phase}"
        if sentence != last:
            last = sentence
            note(sentence)

    return progress


class PacedModel:
    """A `TokenModel` over another one, slowed down to a pace that eyes can follow; no two streams quite the same."""

    def __init__(self, model: TokenModel, pace: float | Callable[[], float], seed: int = 0) -> None:
        """Slow `model` down. pace: tokens a second of a stream, by when it begins. seed: of the differences."""
        self._model = model
        self._pace = pace
        self._random = random.Random(seed)  # noqa: S311 - a pace is no secret

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """Start a stream; see `TokenModel`."""
        pace = self._pace if isinstance(self._pace, float) else self._pace()
        stream = _PacedStream(sink, self._random.uniform(0.7, 1.5) / pace)
        stream.handle = self._model.submit(request, stream.put)
        return stream

    async def info(self, model: str | None = None) -> ModelInfo:
        """Description of a served model."""
        return await self._model.info(model)


class _PacedStream:
    """One stream: passes outputs on at its pace and pauses the model meanwhile."""

    def __init__(self, sink: Sink, interval: float) -> None:
        self._sink = sink
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._queue: list[TokenOutput] = []
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self.handle: StreamHandle | None = None

    def put(self, outputs: Sequence[TokenOutput]) -> None:
        """Queue outputs of the model."""
        self._queue += outputs
        if self._timer is None and not self._paused:
            self._pass_on()
        elif self.handle is not None:
            self.handle.pause()

    def _pass_on(self) -> None:
        self._timer = None
        if self._paused or not self._queue:
            return
        output = self._queue.pop(0)
        if not output.last:
            self._timer = self._loop.call_later(self._interval, self._pass_on)
        if not self._queue and self.handle is not None:
            self.handle.resume()
        self._sink([output])

    def cancel(self) -> None:
        """End the stream; queued outputs are dropped."""
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.handle is not None:
            self.handle.resume()
            self.handle.cancel()

    def pause(self) -> None:
        """Pass nothing on."""
        self._paused = True
        if self.handle is not None:
            self.handle.pause()

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        if self._timer is None:
            self._pass_on()
        elif self.handle is not None:
            self.handle.resume()
