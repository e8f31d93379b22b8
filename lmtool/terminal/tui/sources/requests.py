"""The inspector's own LMTP requests, on a separate connection that is recorded like any other."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lmtool.core.errors import ConnectError, LmtoolError, RequestError, UsageError
from lmtool.core.sampling_parameters import PROMPT_MAX_TOKENS
from lmtool.core.types import ChatMessage, ChatPrompt, GenerateRequest, ModelInfo, SamplingParams, ScoreRequest
from lmtool.net.unix_sockets import runtime_folder, unix_path
from lmtool.protocol.lmtp import model_info
from lmtool.protocol.lmtp.client_connection import SILENCE, ClientConnection
from lmtool.protocol.lmtp.endpoint import SocketEndpoint, parse
from lmtool.protocol.lmtp.remote_stream import RemoteStream
from lmtool.settings.prompt_parameters import apart, split_prompt
from lmtool.settings.score_input import windows, windows_sentence
from lmtool.terminal.tui.request_builder import Abilities, TextToScore
from lmtool.trace.connection_tap import FrameTap
from lmtool.trace.recorder import TokenSpelling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.core.types import Prompt, TokenOutput
    from lmtool.inference.text.tokenizer import TextTokenizer
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.terminal.tui.request_builder import Continuation
    from lmtool.terminal.tui.sources.event_pipeline import EventPipeline

AGENT = "lmtool inspect"
"""Agent of the inspector's own connections in a trace."""
OPEN_LIMIT = 10.0
"""Seconds that a server has to take a connection."""
_WATCHED, _LEAD = '"watch":', 64
"""Mark near the beginning of WATCH frames, which are replaced by their events."""
_ONLY_BEGINS = frozenset({"vllm"})
"""Backends that cannot continue a stream, although their server offers the extension."""
MOST_WINDOWS = 64
"""Windows of a text that is longer than the model's context: each is a stream."""
TOP_LOGPROBS = 5
"""Default alternatives per token of typed prompts and scores."""


def parse_prompt(line: str, defaults: SamplingParams | None = None) -> GenerateRequest:
    """A typed prompt, with the parameters at its end such as `max_tokens=50`. Raises `UsageError`.

    As `lmtool chat` reads it: `prompt_parameters`.
    """
    typed = split_prompt(line)
    base = defaults or SamplingParams(max_tokens=PROMPT_MAX_TOKENS, top_logprobs=TOP_LOGPROBS)
    sampling, deadline = apart(typed.values)
    return GenerateRequest(0, typed.text, replace(base, **sampling), deadline=deadline)


def parse_score(line: str) -> TextToScore:
    """A typed `PROMPT => TEXT`; without an arrow everything is scored after an empty prompt."""
    prompt, arrow, text = line.partition("=>")
    if not arrow:
        return TextToScore("", (), line, whole=line)
    continued = f" {text.strip()}"
    return TextToScore(prompt.rstrip(), (), continued, whole=continued)


class RequestSource:
    """Sends requests; connects for the first one, and again after a loss, with a new connection number."""

    def __init__(
        self,
        endpoint: str | Endpoint,
        pipeline: EventPipeline,
        number: Callable[[], int],
        *,
        model: str | None = None,
        find_tokenizer: Callable[[ModelInfo], TextTokenizer | None],
        check: Callable[[ModelInfo, TextTokenizer | None], None] = lambda _, __: None,
    ) -> None:
        """Remember the server. Raises `UsageError` for a malformed endpoint.

        number: gives each connection its number. model: which of several served ones. find_tokenizer: finds the
        tokenizer of the served model on this machine, None where it is not here; may block. check: raises an
        `LmtoolError` for a model, with its tokenizer, that no request may be sent to.
        """
        self._check = check
        self._endpoint = parse(endpoint)
        self._pipeline = pipeline
        self._number = number
        self._model = model
        self._find_tokenizer = find_tokenizer
        self._tap = FrameTap(pipeline.add, pipeline.clock)
        self._link: ClientConnection | None = None
        self._connection = 0
        self._connecting = asyncio.Lock()
        self._running: dict[str, RemoteStream] = {}
        self._ids = itertools.count(1)
        self._ended = asyncio.Event()
        self._closed = False
        self._watchers: set[asyncio.Task[None]] = set()
        self.info: ModelInfo | None = None
        """The served model; None until the server has answered."""
        self._tokenizer: TextTokenizer | None = None

    @property
    def where(self) -> str:
        """The server, as short as it can be: `:8080`."""
        if not isinstance(self._endpoint, SocketEndpoint):
            return self._endpoint.words[0]
        if path := unix_path(self._endpoint.url):
            beside = Path(path).parent == runtime_folder()
            return f":{Path(path).stem}" if beside else Path(path).name
        rest = self._endpoint.url.partition("://")[2].rstrip("/")
        return rest.removeprefix("127.0.0.1").removeprefix("localhost") if ":" in rest else rest

    async def connect(self) -> ClientConnection:
        """The open connection, else a new one, after `info` is known. Raises `ConnectError`, `ServerError`."""
        async with self._connecting:
            if self._link is None or self._link.lost:
                await self._open()
            assert self._link is not None
            return self._link

    async def _open(self) -> None:
        number = 0

        def on_frame(direction: Literal[">", "<"], frame: str) -> None:
            if not (direction == "<" and frame.startswith("MSG ") and _WATCHED in frame[:_LEAD]):
                self._tap.frame(number, direction, frame)

        link = ClientConnection(self._endpoint, open_timeout=OPEN_LIMIT, on_frame=on_frame)
        try:
            await link.opened()
        except LmtoolError:
            await link.close()
            raise
        number = self._connection = self._number()  # before a frame can go by
        self._link = link
        self._tap.opened(number, AGENT)
        watcher = asyncio.create_task(self._watch(link, number))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        try:
            await self._learn_model(link)
        except LmtoolError:
            await link.close()
            raise

    async def _watch(self, link: ClientConnection, number: int) -> None:
        await link.over()
        if link.closed:
            self._tap.ended(number, "client", 1000)
        else:
            self._tap.ended(number, "server", 1006)

    async def _learn_model(self, link: ClientConnection) -> None:
        unknown = ModelInfo(self._model or "", "", "unknown")
        tokenizer = await asyncio.to_thread(self._find_tokenizer, unknown)
        enough = tokenizer is not None and self._model is not None  # then no answer is needed
        answer = await (link.ask_for(SILENCE, self._model) if enough else link.ask(self._model))
        info = unknown if answer is None else model_info.from_wire(answer, self._model)
        if self.info is None or self.info.tokenizer != info.tokenizer:
            tokenizer = await asyncio.to_thread(self._find_tokenizer, info)
            self._check(info, tokenizer)
            self._tokenizer = tokenizer
            self._pipeline.explain_by(None if tokenizer is None else TokenSpelling(tokenizer))
        self.info = info
        self._pipeline.model.update(_described(info))

    async def generate(self, request: GenerateRequest) -> str:
        """Send it; the label of its stream. Raises `LmtoolError` when there is no server, or it cannot be sent."""
        return await self._submit(replace(request, prompt=await self._as_ids(request.prompt)))

    async def continue_stream(self, continuation: Continuation) -> str:
        """Continue a stream from one of its tokens, see `generate`. Raises `UsageError` if this server cannot."""
        link, tokenizer = await self.connect(), await self._tokenizer_now()
        names = await link.extensions() or frozenset()
        able = Abilities(
            generated="generated" in names and self.info is not None and self.info.backend not in _ONLY_BEGINS,
            mixed_prompt="mixed_prompt" in names and self.info is not None and not self.info.text_only,
            encode=None if tokenizer is None else tokenizer.encode_continuation,
        )
        if self.info is not None and self.info.text_only:
            able = replace(able, generated=False, encode=None)
        request, note = continuation.request_for(able)
        if note:
            self._pipeline.note(f"branch of {continuation.label}: {note}")
        return await self._submit(request)

    async def score(self, text: TextToScore) -> str:
        """Score a text, see `generate`; only text without ids is tokenized."""
        prompt, tokenizer = text.prompt, await self._tokenizer_now()
        scored: tuple[int, ...] | str = (*text.before, *text.after)
        if text.text and tokenizer is not None:
            scored = (*text.before, *tokenizer.encode_continuation(text.text), *text.after)
        elif text.text:
            scored = text.whole
        if tokenizer is not None and isinstance(prompt, str):
            prompt = tuple(tokenizer.encode(prompt))
        if isinstance(prompt, tuple) and isinstance(scored, tuple):
            return await self._score_ids(prompt, scored, text.model)
        return await self._submit(ScoreRequest(0, prompt, scored, text.model, top_logprobs=TOP_LOGPROBS))

    async def _score_ids(self, prompt: tuple[int, ...], scored: tuple[int, ...], model: str | None) -> str:
        """Score ids, in windows if they exceed the model's context; the label of the first stream."""
        context = None if self.info is None else self.info.context_length
        cut = [] if context is None else windows(len(prompt), len(scored), context)
        if context is not None and len(cut) > MOST_WINDOWS:
            raise UsageError(
                f"{len(scored):,} tokens are {len(cut)} windows of the model's context ({context:,}); at most "
                f"{MOST_WINDOWS} are shown here",
                "score it in lines:  lmtool score FILE --heat",
            )
        if context is None or len(cut) < 2:
            return await self._submit(ScoreRequest(0, prompt, scored, model, top_logprobs=TOP_LOGPROBS))
        self._pipeline.note(windows_sentence(len(cut), len(scored), context))
        ids = (*prompt, *scored)
        requests = [ScoreRequest(0, ids[one.start : one.first], ids[one.first : one.end], model) for one in cut]
        labels = [await self._submit(replace(request, top_logprobs=TOP_LOGPROBS)) for request in requests]
        return labels[0]

    async def _tokenizer_now(self) -> TextTokenizer | None:
        await self.connect()
        return self._tokenizer

    async def _as_ids(self, prompt: Prompt) -> Prompt:
        """A typed prompt as ids if the tokenizer is available, so that streams can be continued at any token."""
        tokenizer = await self._tokenizer_now()
        if not isinstance(prompt, str):
            return prompt
        chat = ChatPrompt((ChatMessage("user", prompt),))
        if tokenizer is None:
            return chat if self.info is not None and self.info.chat_template else prompt
        return tuple(tokenizer.encode_prompt(chat if tokenizer.has_chat_template else prompt))

    async def _submit(self, request: GenerateRequest | ScoreRequest) -> str:
        link = await self.connect()
        numbered = replace(
            request,
            stream_id=next(self._ids),
            model=request.model or self._model,
            text=request.text
            or (self._tokenizer is None and self.info is not None and self.info.tokenizer is not None),
        )
        refusals: list[TokenOutput] = []
        handle = link.submit(numbered, lambda outputs: self._on_outputs(label, outputs, refusals))
        label = f"{self._connection}/{handle.key if isinstance(handle, RemoteStream) else numbered.stream_id}"
        if not isinstance(handle, RemoteStream):
            await asyncio.sleep(0)  # a refusal comes in the loop's next turn
            raise RequestError((refusals[0].error if refusals else None) or "it cannot be sent")
        self._running[label] = handle
        return label

    def _on_outputs(self, label: str, outputs: Sequence[TokenOutput], refusals: list[TokenOutput]) -> None:
        if outputs[-1].last:
            refusals.append(outputs[-1])
            self._running.pop(label, None)
            self._ended.set()

    def cancel(self, label: str) -> None:
        """Cancel a stream of this connection; no effect on others."""
        if handle := self._running.get(label):
            handle.cancel()

    async def until_ended(self) -> None:
        """Return once no stream of this connection runs any more."""
        while self._running:
            self._ended.clear()
            await self._ended.wait()

    async def until_lost(self) -> None:
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
        await asyncio.gather(*self._watchers)


def _described(info: ModelInfo) -> dict[str, object]:
    """A model as the header of a trace has it."""
    tokenizer = info.tokenizer
    facts: dict[str, object] = {
        "name": info.model,
        "vocab_size": info.vocab_size,
        "eos": info.eos_token_ids[0] if info.eos_token_ids else None,
        "bos": info.bos_token_id,
        "tokenizer": None if tokenizer is None else {"name": tokenizer.name, "sha256": tokenizer.sha256},
    }
    return {name: value for name, value in facts.items() if value is not None}
