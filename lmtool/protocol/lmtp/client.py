"""A client of any LMTP server, ours or LMQL's, that is itself a `TokenModel`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from lmtool.core.errors import ConnectError, LmtoolError, LocalProtocolError, RequestError, TimeLimitError
from lmtool.core.model_entry import ModelEntry
from lmtool.core.streams import refuse
from lmtool.protocol.lmtp import endpoint as endpoints
from lmtool.protocol.lmtp import model_info
from lmtool.protocol.lmtp.client_buffers import ClientBuffers
from lmtool.protocol.lmtp.client_connection import SILENCE, ClientConnection
from lmtool.protocol.lmtp.keepalive import PING_SECONDS, PingLimits
from lmtool.protocol.lmtp.messages import BufferRequest
from lmtool.protocol.lmtp.wait_limits import WaitLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from lmtool.core.interfaces import Sink, StreamHandle
    from lmtool.core.model_entry import ModelPhase
    from lmtool.core.types import GenerateRequest, LoadProgress, ModelInfo, ScoreRequest
    from lmtool.protocol.lmtp.client_connection import OnFrame
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.protocol.lmtp.messages import SystemMessage, Watched

_POLL_SECONDS = 0.25


class LmtpClient:
    """A remote model.

    `async with` opens and closes the connection. When it is lost, running streams end with `error_code` `connection`;
    they are not repeated here, see `lmtool.core.resuming.Resuming`. The next `submit` or `info` connects again.
    """

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        api_key: str | None = None,
        open_timeout: float | None = 10.0,
        on_frame: OnFrame | None = None,
        on_progress: Callable[[LoadProgress], None] | None = None,
        on_ignored: Callable[[tuple[str, ...]], None] | None = None,
        on_system: Callable[[SystemMessage], None] | None = None,
        extended: bool = False,
        ping_interval: float = PING_SECONDS,
        limits: WaitLimits | None = None,
    ) -> None:
        """A client without a connection yet. endpoint: see `lmtool.protocol.lmtp.endpoint.parse`. Raises `UsageError`.

        api_key: sent to the server, unless the endpoint has credentials of its own. open_timeout: in seconds.
        on_progress: called with the progress of the server's load while requests wait for it. on_ignored: called with
        the fields of a request that the server did not know. on_system: called with what holds streams up (SYS-1).
        extended: the server is known to speak the extensions; else the first request that uses one asks MODEL_INFO
        before, and what LMQL's server does not know is refused. ping_interval: seconds between pings to a server that
        speaks the extensions, over a WebSocket; the connection is lost once it has left three in a row unanswered.
        limits: longest waits for answers and streams; None: the defaults of `WaitLimits`.
        """
        self._endpoint = endpoints.parse(endpoint, api_key)
        self._extended = extended
        self._limits = limits or WaitLimits()
        self._answered = False
        self._link: ClientConnection | None = None
        self._buffers = ClientBuffers()
        self._connect = partial(
            ClientConnection,
            self._endpoint,
            open_timeout=open_timeout,
            on_frame=on_frame,
            on_progress=on_progress,
            on_ignored=on_ignored,
            on_system=on_system,
            buffers=self._buffers,
            pings=PingLimits(ping_interval),
            limits=self._limits,
        )
        self._closed = False

    @property
    def _owned(self) -> bool:
        """True if the server is a process of this client's."""
        return isinstance(self._endpoint, endpoints.CommandEndpoint)

    @property
    def connected(self) -> bool:
        """True if there is a connection not known to be lost; where there is none the next request makes one."""
        return self._link is not None and not self._link.lost

    @property
    def extended(self) -> bool:
        """True if the server is known to speak the extensions, by this connection or an earlier one."""
        return self._extended or (self._link is not None and self._link.extended)

    @property
    def plain(self) -> bool:
        """True if the server is known to speak LMTP as LMQL's does, without the extensions."""
        return self._link is not None and self._link.plain

    @property
    def answered(self) -> bool:
        """True if a server has ever answered anything, and the client is not closed: there is one to go on with."""
        if self._closed:
            return False
        return self._answered or (self._link is not None and self._link.answered)

    @property
    def loss(self) -> LmtoolError | None:
        """Why the last connection was lost; None while it is there."""
        return None if self._link is None else self._link.reason

    async def open(self) -> None:
        """Connect now rather than at the first request.

        Raises `ConnectError` when there is no server, `AccessDeniedError` when it requires another key,
        `TimeLimitError` when that takes longer than `open_timeout` seconds.
        """
        await self._live_link().opened()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; streams that still run end with an error. A server started by `stdio:` ends."""
        self._closed = True
        if self._link is not None:
            await self._link.close()

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """Start a stream on the server; see `TokenModel`."""
        try:
            return self._live_link().submit(request, sink)
        except LocalProtocolError as error:
            return refuse(request.stream_id, sink, error)

    async def info(self, model: str | None = None, *, timeout: float | None = None) -> ModelInfo:  # noqa: ASYNC109  # a limit of the protocol's, with an error of ours
        """What the server serves under this name.

        Waits while the model loads, `timeout` seconds at most. Raises `RequestError` (a name that is not served, where
        the server tells the kind), `ServerError`, `ConnectError`, `TimeLimitError`.
        """
        answer = await self.model_info(model, timeout=timeout)
        return model_info.from_wire(answer, model)

    async def info_or_none(self, model: str | None = None, *, patient: bool = True) -> ModelInfo | None:
        """As `info`; None where the server does not describe its model.

        LMQL's server answers `<unavailable>` while it loads a model and for ever for some, and may not answer at all;
        patient: wait for that. A server of ours is waited for while it loads the model.
        """
        link = self._live_link()
        async with self._limited(model, None, "answer"):
            answer = await (link.ask(model) if patient else link.ask_for(SILENCE, model))
        return None if answer in (None, model_info.UNAVAILABLE) else model_info.from_wire(answer, model)

    async def models(self, model: str | None = None, *, timeout: float | None = None) -> list[ModelEntry]:  # noqa: ASYNC109  # as above
        """What the server serves, at once; of one that cannot list it, the model of this name once it is loaded.

        model: the name for that case, without which LMQL's server would drop the connection. Raises as `info`.
        """
        async with self._limited(model, timeout, "list of models"):
            answer = await self._live_link().ask(model, listing=True)
        if isinstance(answer, Mapping | str):
            info = model_info.from_wire(answer, model)
            phase: ModelPhase = "loading" if answer == model_info.UNAVAILABLE else "ready"
            return [ModelEntry(info.model, phase=phase, context_length=info.context_length)]
        return _entries(answer)

    async def manage(self, *, load: str | None = None, unload: str | None = None) -> list[ModelEntry]:
        """Have the server load or unload a model; what it serves once that is done (MODELS).

        Raises `RequestError` (a name that is not served, a model in use or pinned, a server without MODELS), the error
        of the load as `ServerError`, and `ConnectError`.
        """
        try:
            async with self._limited(load or unload, None, "answer to MODELS"):
                return _entries(await self._live_link().manage(load, unload))
        except LmtoolError as error:
            if not error.message.startswith("Unknown command"):
                raise
            raise RequestError("the server does not load and unload models on request", "lmtool serve does") from None

    async def change_buffer(
        self,
        name: str,
        append: Sequence[str | tuple[int, ...]] | None = None,
        *,
        drop: bool = False,
        ttl: float | None = None,
        model: str | None = None,
    ) -> int:
        """Append texts and ids to a buffer of the connection, or drop it (BUFFER); its length in ids then.

        ttl: seconds without use after which the server forgets it. model: whose tokenizer reads the texts. Where the
        connection was lost, a request that names the buffer sends its content to the next one before. Raises
        `RequestError` (then nothing was changed; also for a server without buffers), `ConnectError`, `ServerError`.
        """
        parts = None if append is None else tuple(append)
        request = BufferRequest("", name, parts, drop, ttl, model)
        async with self._limited(model, None, "answer to BUFFER"):
            return await self._live_link().change_buffer(request)

    async def watch(self, on_watched: Callable[[Watched], None]) -> None:
        """Watch the server's other connections; see `ClientConnection.watch`."""
        await self._live_link().watch(on_watched)

    def buffer_length(self, name: str) -> int:
        """Ids of a buffer that `change_buffer` or `GenerateRequest.into` has made, 0 of any other."""
        return self._buffers.length(name)

    async def load(self, name: str) -> list[ModelEntry]:
        """Have the server load a model, as `manage`."""
        return await self.manage(load=name)

    async def unload(self, name: str) -> list[ModelEntry]:
        """Have the server give back a model's memory, as `manage`."""
        return await self.manage(unload=name)

    async def model_info(
        self,
        model: str | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # as above
    ) -> Mapping[str, object] | str:
        """The `model_info` of the server's answer as it is, for what `ModelInfo` has no field for. As `info` else."""
        answer: Mapping[str, object] | str
        loop = asyncio.get_running_loop()
        last = loop.time() + self._limits.load
        async with self._limited(model, timeout, "answer to MODEL_INFO"):
            while (answer := await self._live_link().ask(model)) == model_info.UNAVAILABLE:
                if loop.time() >= last:
                    raise TimeLimitError(f"the model is still not available after {self._limits.load:g} s")
                await asyncio.sleep(_POLL_SECONDS)  # LMQL's answers at once, and not again when its model is loaded
        return answer

    @contextlib.asynccontextmanager
    async def _limited(self, model: str | None, timeout: float | None, answer: str) -> AsyncIterator[None]:  # noqa: ASYNC109  # as above
        """Limit the time for an answer, and add a hint about why a connection may have been lost."""
        try:
            async with asyncio.timeout(timeout):
                yield
        except TimeoutError:
            raise TimeLimitError(f"no {answer} within {timeout:g} s") from None
        except ConnectError as error:
            unexplained = model is None and not (self.extended or self._owned or error.hints)
            if not unexplained or self._link is None or not self._link.was_open:
                raise
            hint = "name a model: LMQL's own server drops a connection that names none"
            raise ConnectError(error.message, hint) from None

    def _live_link(self) -> ClientConnection:
        if self._closed:
            raise LocalProtocolError("this client is closed; make a new one")
        if self._link is None or self._link.lost:
            self._answered = self.answered
            self._link = self._connect(
                extended=self.extended,  # a server that comes back silent is not taken for LMQL's
                after=self._link if self._owned else None,  # two would not have room in memory
            )
        return self._link


def _entries(answer: object) -> list[ModelEntry]:
    """The entries of a `models` that make sense."""
    entries = answer if isinstance(answer, list | tuple) else ()
    return [model_info.entry_from_wire(entry) for entry in entries if isinstance(entry, Mapping)]
