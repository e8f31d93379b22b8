"""The Python face: a model behind a socket or in this process, with the same calls; and a server of one's own."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack, cast

from lmtool.core.api_arguments import (
    ConstraintLike,
    EngineOptions,
    PromptLike,
    Sampling,
    as_prompt,
    as_sampling,
    wants_text,
)
from lmtool.core.buffer import Buffer
from lmtool.core.constraint import constraint_from
from lmtool.core.errors import UsageError
from lmtool.core.resuming import STREAM_SECONDS
from lmtool.core.sampling_parameters import check_deadline
from lmtool.core.streams import error_of, stream
from lmtool.core.types import ChatMessage, ChatPrompt, GenerateRequest, ScoreRequest, TokenOutput
from lmtool.net.access.stall import STALL_SECONDS
from lmtool.protocol.evergreen.actions import action as action  # noqa: PLC0414  # for `lmtool.action`
from lmtool.settings.option import check_options

if TYPE_CHECKING:
    from os import PathLike

    from lmtool.core.buffer import BufferKeeper
    from lmtool.core.interfaces import TokenModel
    from lmtool.core.types import LoadProgress, ModelInfo
    from lmtool.protocol.evergreen.actions import ActionType
    from lmtool.protocol.evergreen.client import Session
    from lmtool.protocol.evergreen.client_transport import ClientTransport
    from lmtool.serving.service import Service

CHAT_TOKENS = 512
"""Default `max_tokens` of `Model.chat`."""


class Model:
    """One model, wherever it runs, by `connect` or `load`: any number of calls at once, in the loop it came from."""

    def __init__(self, model: TokenModel, name: str | None = None, buffers: BufferKeeper | None = None) -> None:
        """Wrap a token model. name: which of several served ones. buffers: keeps those that its prompts name."""
        self._model = model
        self._name = name
        self._buffers = buffers
        self._stream_ids = itertools.count(1)
        self._buffer_numbers = itertools.count(1)

    def buffer(self, name: str | None = None) -> Buffer:
        """A buffer for the beginnings of prompts, empty unless there is one of this name; nothing is sent yet.

        Raises `UsageError` where the model keeps none.
        """
        if self._buffers is None:
            raise UsageError("this model keeps no buffers", "lmtool.connect and lmtool.load give one that does")
        return Buffer(self._buffers, name or f"buffer-{next(self._buffer_numbers)}", self._name)

    async def prefill(self, prompt: PromptLike) -> None:
        """Have a prompt computed, behind all other requests, so that prompts that begin with it start sooner.

        Raises what `generate` raises, and `RequestError` for a model that cannot do it.
        """
        request = GenerateRequest(next(self._stream_ids), as_prompt(prompt), model=self._name, prefill_only=True)
        async for _ in self._stream(request):
            pass

    def generate(
        self,
        prompt: PromptLike,
        *,
        text: bool | None = None,
        constraint: ConstraintLike | None = None,
        priority: int = 0,
        into: Buffer | None = None,
        **sampling: Unpack[Sampling],
    ) -> AsyncIterator[TokenOutput]:
        """Stream the tokens that continue a prompt; leaving the iterator early cancels them.

        prompt: text, token ids, or messages. text: whether outputs carry the text they complete; by default where the
        prompt is not token ids. constraint: what the whole text must match, such as `{"regex": "[a-z]+"}` (GEN-13).
        priority: lower begins first while streams wait. into: takes the ids when the stream ends by itself (BUF-4).
        deadline: seconds from now to the stream's end. Raises at once `TypeError` for an unknown parameter,
        `ConstraintError` and `RequestError`, and while streaming the error that ends the stream: `RequestError` or a
        subclass, `ConnectError`, `ServerError`, `TimeLimitError`.
        """
        deadline = check_deadline(sampling.pop("deadline", None))
        request = GenerateRequest(
            stream_id=next(self._stream_ids),
            prompt=as_prompt(prompt),
            sampling=as_sampling(sampling),
            model=self._name,
            text=wants_text(prompt) if text is None else text,
            constraint=constraint_from(constraint) if isinstance(constraint, Mapping) else constraint,
            priority=priority,
            into=None if into is None else into.name,
            deadline=deadline,
        )
        return self._stream(request)

    async def chat(
        self,
        message: PromptLike,
        *,
        system: str | None = None,
        constraint: ConstraintLike | None = None,
        **sampling: Unpack[Sampling],
    ) -> str:
        """The whole answer to a message, under the model's chat template where it has one.

        message: a text, or a conversation as messages. system: put in front of it. The limit is 512 tokens unless
        `max_tokens` says otherwise. constraint, and what is raised: see `generate`.
        """
        prompt = await self._conversation(message, system)
        sampling.setdefault("max_tokens", CHAT_TOKENS)
        outputs = self.generate(prompt, text=True, constraint=constraint, **sampling)
        return "".join([output.text or "" async for output in outputs])

    async def score(
        self,
        prompt: PromptLike,
        scored: str | Sequence[int],
        *,
        top_logprobs: int | None = None,
        text: bool | None = None,
        deadline: float | None = None,
    ) -> list[TokenOutput]:
        """The log-probability of each token of `scored`, in nats, given the prompt and the scored tokens before it.

        top_logprobs: how many alternatives to tell for each; None tells none. deadline, and what is raised: `generate`.
        """
        request = ScoreRequest(
            stream_id=next(self._stream_ids),
            prompt=as_prompt(prompt),
            scored=scored if isinstance(scored, str) else tuple(scored),
            model=self._name,
            top_logprobs=top_logprobs,
            text=wants_text(scored) if text is None else text,
            deadline=check_deadline(deadline),
        )
        return [output async for output in self._stream(request) if output.token is not None]

    async def info(self) -> ModelInfo:
        """What the model is and how it runs. Raises `RequestError`, `ConnectError` or `ServerError`."""
        return await self._model.info(self._name)

    async def _stream(self, request: GenerateRequest | ScoreRequest) -> AsyncIterator[TokenOutput]:
        outputs = cast("AsyncGenerator[TokenOutput, None]", stream(self._model, request))
        async with aclosing(outputs):
            async for output in outputs:
                if output.error is not None:
                    raise error_of(output)
                yield output

    async def _conversation(self, message: PromptLike, system: str | None) -> PromptLike:
        if not isinstance(message, str):
            prompt = as_prompt(message)
            if system is None or not isinstance(prompt, ChatPrompt):
                return message
            return replace(prompt, messages=(ChatMessage("system", system), *prompt.messages))
        if not (await self.info()).chat_template:
            return message if system is None else f"{system}\n\n{message}"
        head = () if system is None else (ChatMessage("system", system),)
        return (*head, ChatMessage("user", message))


@asynccontextmanager
async def connect(
    url: str = "ws://127.0.0.1:8080/",
    *,
    api_key: str | None = None,
    model: str | None = None,
    open_timeout: float | None = 10.0,
    retries: int = 4,
    token_timeout: float | None = 60.0,
    first_token_timeout: float = STREAM_SECONDS,
    on_progress: Callable[[LoadProgress], None] | None = None,
) -> AsyncIterator[Model]:
    """A model behind a server, ours or LMQL's: `async with lmtool.connect(url) as model`.

    url: `ws://`, `wss://`, `http://`, `HOST:PORT`, or `stdio:COMMAND`, which starts the server. api_key: what the
    server asks for; it may be in the url as well, `ws://user:KEY@HOST:PORT/`. model: which of several served ones.
    open_timeout: seconds. retries, token_timeout: how often in a row (0: never), and after how many silent seconds, a
    cut stream goes on from where it stood, see `resuming.ResumeOptions`. first_token_timeout: seconds without a token
    or a notice of load or queue after which a stream ends with an error. on_progress: called as a load proceeds.
    Raises `UsageError` for a malformed url, `AccessDeniedError` for a wrong key, `ConnectError` or `TimeLimitError`.
    """
    from lmtool.core.resuming import ResumeOptions, Resuming
    from lmtool.protocol.lmtp.client import LmtpClient
    from lmtool.protocol.lmtp.wait_limits import WaitLimits

    options = ResumeOptions(retries, token_timeout, first_token_timeout)
    client = LmtpClient(
        url,
        api_key=api_key,
        open_timeout=open_timeout,
        on_progress=on_progress,
        on_system=_ignore,  # which requests the notices that tell a queue from silence
        limits=WaitLimits.of(options),
    )
    async with client:
        yield Model(Resuming(client, options, may_repeat=lambda: client.answered), model, client)


@asynccontextmanager
async def session(
    url: str = "ws://127.0.0.1:8080/",
    *,
    api_key: str | None = None,
    actions: Sequence[ActionType] = (),
) -> AsyncIterator[Session]:
    """An Evergreen session with a server, as long as the block lasts: `async with lmtool.session(url) as session`.

    url: as for `connect`, `grpc://HOST:PORT`, or `grpcs://HOST:PORT` with TLS; its path may be left out. api_key: as
    for `connect`. actions: what the server may ask for, where it does (`lmtool serve --peer-actions`); made by
    `lmtool.action`.

    Leaving the block in order waits for the answers to all that was asked for. Raises `evergreen.status.Abort` with the
    server's reason, `UsageError`, `AccessDeniedError`, `ConnectError` or `TimeLimitError`.
    """
    from lmtool.protocol.evergreen.client import run_session

    async with run_session(await open_evergreen(url, api_key), actions) as running:
        yield running


def need_protobuf() -> None:
    """Raise `ResourceError` with the install line where Evergreen's messages cannot be read."""
    from lmtool.serving.composition import need_packages

    need_packages(("google.protobuf",), "Evergreen", "pip install 'lmtool[grpc]'")


async def open_evergreen(url: str, api_key: str | None = None) -> ClientTransport:
    """A transport for an Evergreen session, see `session`. Raises the same."""
    need_protobuf()
    from lmtool.net.access.outgoing import authorization
    from lmtool.protocol.evergreen.client_transport import dial, dial_grpc
    from lmtool.protocol.lmtp.endpoint import SocketEndpoint, parse

    if url.startswith(("grpc://", "grpcs://")):
        address, shown = authorization(url, api_key)
        scheme, _, place = address.partition("://")
        return await dial_grpc(place.rstrip("/"), shown, tls=scheme == "grpcs")
    endpoint = parse(url, api_key)
    if not isinstance(endpoint, SocketEndpoint):
        raise UsageError("a session needs a server that listens", "serve it:  lmtool serve")
    return await dial(endpoint.url, endpoint.authorization, loopback=endpoint.loopback)


@asynccontextmanager
async def load(
    model: str | None = None,
    *,
    on_progress: Callable[[LoadProgress], None] | None = None,
    **engine: Unpack[EngineOptions],
) -> AsyncIterator[Model]:
    """A model in this process, without a socket: `async with lmtool.load("gpt2") as model`.

    model: a local folder, a hub name, or None for the embedded model. engine: fields of
    `lmtool.inference.engine.config.EngineConfig`, such as `device`, `dtype`, `max_streams`.
    on_progress: called in the loop.
    Raises `ModelLoadError`, `ResourceError`, `OutOfMemoryError`; leaving ends what still runs and frees the memory.
    """
    from lmtool.inference.engine.config import EngineConfig
    from lmtool.protocol.lmtp.buffered_model import BufferedModel
    from lmtool.protocol.lmtp.config import ServerConfig
    from lmtool.serving.composition import need_serve_packages
    from lmtool.serving.config import ModelsConfig, ServiceConfig
    from lmtool.serving.service import Service

    need_serve_packages()
    service = Service(ServiceConfig(ModelsConfig(model), EngineConfig(**engine)))
    try:
        await service.ready(on_progress or _ignore)
        buffered = BufferedModel(service.model, ServerConfig())
        yield Model(buffered, buffers=buffered)
    finally:
        await service.close()


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str
    """Where clients on this machine reach it."""
    info: ModelInfo | None
    """What is served; None where models are loaded on demand."""
    service: Service

    async def drain(self, seconds: float = 3600.0) -> bool:
        """Take no new work, let running streams end; whether all ended within `seconds`."""
        return await self.service.drain(seconds)


@asynccontextmanager
async def serve(
    model: str | Sequence[str] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    unix: str | None = None,
    served_model_name: Sequence[str] = (),
    generation_config: str = "auto",
    allow_model: Sequence[str] = (),
    api_key: str | None = None,
    api_keys: str | PathLike[str] | None = None,
    trusted_proxy: Sequence[str] = (),
    allow_origin: Sequence[str] = (),
    allow_host: Sequence[str] = (),
    no_auth: bool = False,
    stall_limit: float = STALL_SECONDS,
    on_progress: Callable[[LoadProgress], None] | None = None,
    **engine: Unpack[EngineOptions],
) -> AsyncIterator[Server]:
    """A server in this process, as long as the block lasts: `async with lmtool.serve("gpt2") as server`.

    model: a folder, a hub name, a list of these, `auto`, or None for the embedded model. port: 0 takes a free one.
    unix: the path of a Unix socket, in the place of a port. The others are those of `lmtool serve`; engine: fields of
    `EngineConfig`. api_keys: a TOML file of keys, in place of one `api_key`. stall_limit: seconds for which a client
    may take nothing; 0: any number. Entered once the models answer. Leaving ends what still runs; `Server.drain` lets
    it end before.
    Raises what `load` raises, `ResourceError` for a port or path that cannot be had, `UsageError` for a host that other
    machines reach without a key or `no_auth`, `FileError` for a file of keys with faults.
    """
    from lmtool.inference.engine.config import EngineConfig
    from lmtool.protocol.lmtp.config import ServerConfig
    from lmtool.serving.access_config import AccessConfig, PortOptions
    from lmtool.serving.composition import need_serve_packages
    from lmtool.serving.config import ListenConfig, ModelsConfig, ServiceConfig
    from lmtool.serving.listening import bind, url
    from lmtool.serving.service import Service

    need_serve_packages()
    check_options(wire := ServerConfig(stall_limit=stall_limit))
    models = ModelsConfig.of(
        model,
        served_model_name=tuple(served_model_name),
        allow_model=tuple(allow_model),
        generation_config=generation_config,
    )
    listen = ListenConfig(host, port, unix)
    keys = None if api_keys is None else str(api_keys)
    access = AccessConfig(tuple(allow_origin), tuple(allow_host), no_auth, keys, tuple(trusted_proxy))
    config = ServiceConfig(models, EngineConfig(**engine))
    service = Service(PortOptions(access, server=wire).applied(config, listen, api_key))
    service.listen(sockets := bind(listen))
    try:
        yield Server(url(listen, sockets), await service.ready(on_progress or _ignore), service)
    finally:
        await service.close()


def _ignore(_notice: object) -> None:
    """Ignore progress and notices."""
