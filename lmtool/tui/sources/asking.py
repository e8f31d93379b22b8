"""Requests of the inspector's own, on a connection of its own that is watched like any other."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lmtool.errors import ConnectError, LmtoolError, RequestError, TimeLimitError
from lmtool.lmtp import model_info
from lmtool.lmtp.endpoint import SocketEndpoint, parse
from lmtool.lmtp.link import Link, RemoteStream
from lmtool.trace.frame_tap import FrameTap
from lmtool.types import ChatMessage, GenerateRequest, ScoreRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.lmtp.endpoint import Endpoint
    from lmtool.text.tokenizer import TextTokenizer
    from lmtool.tui.sources.intake import Intake
    from lmtool.tui.sources.source import TextToScore
    from lmtool.types import ModelInfo, Prompt, TokenOutput

AGENT = "lmtool inspect"
"""What the inspector's own connections call themselves in a trace."""
OPEN_LIMIT = 10.0
"""Seconds that a server has to take a connection."""
INFO_LIMIT = 120.0
"""Seconds that a model has to load."""
TOP = 5
"""Alternatives beside each scored token."""


class Asking:
    """Connects when it is first asked, and again after a loss: each life of the connection has a number of its own."""

    def __init__(
        self,
        endpoint: str | Endpoint,
        intake: Intake,
        number: Callable[[], int],
        *,
        model: str | None = None,
        find_tokenizer: Callable[[ModelInfo], TextTokenizer | None],
        check: Callable[[ModelInfo, TextTokenizer | None], None] = lambda _, __: None,
    ) -> None:
        """Remember the server. Raises `UsageError` for a malformed endpoint.

        number: gives each connection its number. model: which of several served ones. find_tokenizer: finds the
        tokenizer of the served model on this machine, None where it is not here; may block. check: raises an
        `LmtoolError` for a model, with its tokenizer, that nothing may be asked of.
        """
        self._check = check
        self._endpoint = parse(endpoint)
        self._intake = intake
        self._number = number
        self._model = model
        self._find_tokenizer = find_tokenizer
        self._tap = FrameTap(intake.tell, intake.clock)
        self._link: Link | None = None
        self._connection = 0
        self._connecting = asyncio.Lock()
        self._running: dict[str, RemoteStream] = {}
        self._ids = itertools.count(1)
        self._ended = asyncio.Event()
        self._closed = False
        self._watching: set[asyncio.Task[None]] = set()
        self.info: ModelInfo | None = None
        """What the server serves, once it said so."""
        self._tokenizer: TextTokenizer | None = None

    @property
    def where(self) -> str:
        """The server, as short as it can be: `:8080`."""
        if not isinstance(self._endpoint, SocketEndpoint):
            return self._endpoint.words[0]
        rest = self._endpoint.url.partition("://")[2].rstrip("/")
        return rest.removeprefix("127.0.0.1").removeprefix("localhost") if ":" in rest else rest

    async def connect(self) -> Link:
        """The connection, made and asked what is served where there is none. Raises `ConnectError`, `ServerError`."""
        async with self._connecting:
            if self._link is None or self._link.lost:
                await self._open()
            assert self._link is not None
            return self._link

    async def _open(self) -> None:
        number = 0

        def on_frame(direction: Literal[">", "<"], frame: str) -> None:
            self._tap.frame(number, direction, frame)

        link = Link(self._endpoint, open_timeout=OPEN_LIMIT, on_frame=on_frame, on_progress=None, on_ignored=None)
        try:
            await link.opened()
        except LmtoolError:
            await link.close()
            raise
        number = self._connection = self._number()  # before a frame can go by
        self._link = link
        self._tap.opened(number, AGENT)
        watching = asyncio.create_task(self._watch(link, number))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        try:
            await self._ask_info(link)
        except LmtoolError:
            await link.close()
            raise

    async def _watch(self, link: Link, number: int) -> None:
        await link.over()
        if link.closed:
            self._tap.ended(number, "client", 1000)
        else:
            self._tap.ended(number, "server", 1006)

    async def _ask_info(self, link: Link) -> None:
        try:
            async with asyncio.timeout(INFO_LIMIT):
                told = await link.ask(self._model)
        except TimeoutError:
            raise TimeLimitError(f"no answer to MODEL_INFO within {INFO_LIMIT:g} s") from None
        info = model_info.from_wire(told, self._model)
        if info.tokenizer is not None and (self.info is None or self.info.tokenizer != info.tokenizer):
            tokenizer = await asyncio.to_thread(self._find_tokenizer, info)
            self._check(info, tokenizer)
            self._tokenizer = tokenizer
            self._intake.explain_by(None if tokenizer is None else tokenizer.piece)
        elif self.info is None:
            self._check(info, None)
        self.info = info
        self._intake.model.update(_described(info))

    async def generate(self, request: GenerateRequest) -> str:
        """Send it; the label of its stream. Raises `LmtoolError` when there is no server, or it cannot be sent."""
        return await self._submit(replace(request, prompt=await self._as_ids(request.prompt)))

    async def score(self, given: TextToScore) -> str:
        """The same for given text; its own ids stay what they are, only what has none is tokenized."""
        prompt, tokenizer = given.prompt, await self._tokenizer_now()
        scored: tuple[int, ...] | str = (*given.before, *given.after)
        if given.text and tokenizer is not None:
            scored = (*given.before, *tokenizer.encode_continuation(given.text), *given.after)
        elif given.text:
            scored = given.whole
        if tokenizer is not None and isinstance(prompt, str):
            prompt = tuple(tokenizer.encode(prompt))
        return await self._submit(ScoreRequest(0, prompt, scored, given.model, top_logprobs=TOP))

    async def _tokenizer_now(self) -> TextTokenizer | None:
        await self.connect()
        return self._tokenizer

    async def _as_ids(self, prompt: Prompt) -> Prompt:
        """A typed prompt as ids where the tokenizer is here, so that every stream can be continued at any token."""
        tokenizer = await self._tokenizer_now()
        if not isinstance(prompt, str):
            return prompt
        message = (ChatMessage("user", prompt),)
        if tokenizer is None:
            return message if self.info is not None and self.info.chat_template else prompt
        return tuple(tokenizer.encode_chat(message) if tokenizer.has_chat_template else tokenizer.encode(prompt))

    async def _submit(self, request: GenerateRequest | ScoreRequest) -> str:
        link = await self.connect()
        asked = replace(
            request,
            stream_id=next(self._ids),
            model=request.model or self._model,
            text=request.text
            or (self._tokenizer is None and self.info is not None and self.info.tokenizer is not None),
        )
        refused: list[TokenOutput] = []
        handle = link.submit(asked, lambda outputs: self._came(label, outputs, refused))
        label = f"{self._connection}/{handle.key if isinstance(handle, RemoteStream) else asked.stream_id}"
        if not isinstance(handle, RemoteStream):
            await asyncio.sleep(0)  # a refusal comes in the loop's next turn
            raise RequestError(refused[0].error or "it cannot be sent" if refused else "it cannot be sent")
        self._running[label] = handle
        return label

    def _came(self, label: str, outputs: Sequence[TokenOutput], refused: list[TokenOutput]) -> None:
        if outputs[-1].last:
            refused.append(outputs[-1])
            self._running.pop(label, None)
            self._ended.set()

    def cancel(self, label: str) -> None:
        """End a stream of this connection; harmless for any other."""
        if handle := self._running.get(label):
            handle.cancel()

    async def until_ended(self) -> None:
        """Return once none of the streams asked for runs any more."""
        while self._running:
            self._ended.clear()
            await self._ended.wait()

    async def gone(self) -> None:
        """Connect, wait until the connection is over, and raise why unless `close` ended it."""
        link = await self.connect()
        await link.over()
        if not self._closed:
            raise link.reason or ConnectError("the connection is lost")

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        if self._link is not None:
            await self._link.close()
        await asyncio.gather(*self._watching)


def _described(info: ModelInfo) -> dict[str, object]:
    """A model as the header of a trace has it."""
    told: dict[str, object] = {"name": info.model, "vocab_size": info.vocab_size}
    if info.eos_token_ids:
        told["eos"] = info.eos_token_ids[0]
    told["bos"] = info.bos_token_id
    if info.tokenizer is not None:
        told["tokenizer"] = {"name": info.tokenizer.name, "sha256": info.tokenizer.sha256}
    return {name: value for name, value in told.items() if value is not None}
