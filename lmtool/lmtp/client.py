"""A client of any LMTP server, ours or LMQL's, that is itself a `TokenModel`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.errors import ConnectError, LocalProtocolError, TimeLimitError
from lmtool.interfaces import refuse
from lmtool.lmtp import endpoint as endpoints
from lmtool.lmtp import model_info
from lmtool.lmtp.link import SILENCE, Link
from lmtool.types import ModelEntry

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from lmtool.errors import LmtoolError
    from lmtool.interfaces import Sink, StreamHandle
    from lmtool.lmtp.endpoint import Endpoint
    from lmtool.types import GenerateRequest, LoadProgress, ModelInfo, ModelPhase, ScoreRequest

OnFrame: TypeAlias = "Callable[[Literal['>', '<'], str], None]"
"""Is shown every frame: `>` as it is sent, `<` as it is received."""

_POLL_SECONDS = 0.25


class LmtpClient:
    """A remote model.

    Make one with `await LmtpClient.connect(...)`, best in `async with`. When the connection is lost, running streams
    end with `error_code` `connection`; they are not repeated. The next `submit` or `info` connects again.
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
        extended: bool = False,
    ) -> None:
        """Remember where the server is (`lmtool.lmtp.endpoint` has the forms). Raises `UsageError`.

        `api_key` is shown to the server, unless the endpoint has credentials of its own.
        `on_progress` is told how the server's load proceeds while requests wait for it, `on_ignored` which fields of a
        request the server did not know, where a server can tell. extended: the server is known to speak the extensions;
        else the first request that uses one asks MODEL_INFO before, and what LMQL's server does not know is refused.
        """
        self._endpoint = endpoints.parse(endpoint, api_key)
        self._open_timeout = open_timeout
        self._on_frame = on_frame
        self._on_progress = on_progress
        self._on_ignored = on_ignored
        self._extended = extended
        self._link: Link | None = None
        self._closed = False

    @classmethod
    async def connect(
        cls,
        endpoint: str | Endpoint,
        *,
        api_key: str | None = None,
        open_timeout: float | None = 10.0,
        on_frame: OnFrame | None = None,
        on_progress: Callable[[LoadProgress], None] | None = None,
        on_ignored: Callable[[tuple[str, ...]], None] | None = None,
    ) -> Self:
        """A client with an open connection.

        Raises `UsageError` for a malformed endpoint, `ConnectError` when nobody answers there, `AccessDeniedError` when
        the server wants another key, `TimeLimitError` when that takes longer than `open_timeout` seconds.
        """
        client = cls(
            endpoint,
            api_key=api_key,
            open_timeout=open_timeout,
            on_frame=on_frame,
            on_progress=on_progress,
            on_ignored=on_ignored,
        )
        await client.open()
        return client

    @property
    def _owned(self) -> bool:
        """Whether the server is a process of this client's."""
        return isinstance(self._endpoint, endpoints.CommandEndpoint)

    @property
    def connected(self) -> bool:
        """Whether there is a connection not known to be lost; where there is none the next request makes one."""
        return self._link is not None and not self._link.lost

    @property
    def plain(self) -> bool:
        """Whether the server is known to speak LMTP as LMQL's does, without the extensions."""
        return self._link is not None and self._link.plain

    @property
    def loss(self) -> LmtoolError | None:
        """Why the last connection was lost; None while it is there."""
        return None if self._link is None else self._link.reason

    async def open(self) -> None:
        """Connect now rather than at the first request. Raises as `connect` does."""
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
        told = await self.model_info(model, timeout=timeout)
        return model_info.from_wire(told, model)

    async def info_if_told(self, model: str | None = None, *, patient: bool = True) -> ModelInfo | None:
        """The same of a server that may have nothing to say: then None. Raises as `info`.

        LMQL's answers `<unavailable>` while it loads a model and for ever of some, and may not answer at all; patient:
        wait for that. A server of ours is waited for while it loads the model.
        """
        link = self._live_link()
        with self._explained(model):
            told = await (link.ask(model) if patient else link.ask_for(SILENCE, model))
        return None if told in (None, model_info.UNAVAILABLE) else model_info.from_wire(told, model)

    async def models(self, model: str | None = None, *, timeout: float | None = None) -> list[ModelEntry]:  # noqa: ASYNC109  # as above
        """What the server serves, at once; of one that cannot list it, the model of this name once it is loaded.

        model: the name for that case, without which LMQL's server would drop the connection. Raises as `info`.
        """
        with self._explained(model):
            try:
                async with asyncio.timeout(timeout):
                    told = await self._live_link().models(model)
            except TimeoutError:
                raise TimeLimitError(f"no list of models within {timeout:g} s") from None
        if isinstance(told, Mapping | str):
            info = model_info.from_wire(told, model)
            phase: ModelPhase = "loading" if told == model_info.UNAVAILABLE else "ready"
            return [ModelEntry(info.model, phase=phase, context_length=info.context_length)]
        entries = told if isinstance(told, list | tuple) else ()
        return [model_info.entry_from_wire(entry) for entry in entries if isinstance(entry, Mapping)]

    async def model_info(
        self,
        model: str | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # as above
    ) -> Mapping[str, object] | str:
        """The `model_info` of the server's answer as it is, for what `ModelInfo` has no field for. As `info` else."""
        with self._explained(model):
            try:
                async with asyncio.timeout(timeout):
                    while True:
                        told = await self._live_link().ask(model)
                        if told != model_info.UNAVAILABLE:
                            return told
                        # LMQL's server does not answer when its model is loaded, but at once: ask it again.
                        await asyncio.sleep(_POLL_SECONDS)
            except TimeoutError:
                raise TimeLimitError(f"no answer to MODEL_INFO within {timeout:g} s") from None

    @contextlib.contextmanager
    def _explained(self, model: str | None) -> Iterator[None]:
        """Say what a lost connection may come from."""
        try:
            yield
        except ConnectError as error:
            if model is not None or self._owned or self._link is None or not self._link.was_open:
                raise
            hint = "name a model: LMQL's own server drops a connection that names none"
            raise ConnectError(error.message, *error.hints, hint) from None

    def _live_link(self) -> Link:
        if self._closed:
            raise LocalProtocolError("this client is closed; make a new one")
        if self._link is None or self._link.lost:
            self._link = Link(
                self._endpoint,
                open_timeout=self._open_timeout,
                on_frame=self._on_frame,
                on_progress=self._on_progress,
                on_ignored=self._on_ignored,
                extended=self._extended,
                after=self._link if self._owned else None,  # two would not have room in memory
            )
        return self._link
