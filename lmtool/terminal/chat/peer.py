"""The client's connection to a model: connected, described, with a tokenizer of our own for servers without one."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lmtool.core.errors import ConnectError, UsageError
from lmtool.core.model_entry import ModelEntry
from lmtool.core.resuming import ResumeOptions, Resuming
from lmtool.core.types import ModelInfo
from lmtool.settings.terminal import PassingNote

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from lmtool.core.errors import LmtoolError
    from lmtool.core.interfaces import TokenModel
    from lmtool.core.types import LoadProgress, TokenizerInfo
    from lmtool.inference.text.tokenizer import TextTokenizer
    from lmtool.protocol.lmtp.client import LmtpClient
    from lmtool.protocol.lmtp.client_connection import OnFrame
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.protocol.lmtp.messages import SystemMessage
    from lmtool.serving.console import Console
    from lmtool.settings.terminal import Output
    from lmtool.trace.recorder import SessionTap

SILENCE = 2.0
"""Seconds without an answer after which stderr says that the model is awaited."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A model that accepts text, and its description."""

    model: TokenModel
    info: ModelInfo
    tokenizer: TextTokenizer | None
    """The user's choice; None where the server tokenizes."""
    client: LmtpClient
    waiting: Waiting

    async def switched(self, name: str) -> Peer:
        """The same server's model of this name. Raises `UsageError` beside a tokenizer of the user's, and as `info`."""
        if self.tokenizer is not None:
            raise UsageError("--tokenizer is for one model: another one cannot be used in this session", "start again")
        described = replace(self, info=await self.client.info(name))
        return _accepting_text(described, "the server")

    async def models(self) -> list[ModelEntry]:
        """What the server serves, where it can list it; else this model alone."""
        return await self.client.models() if self.client.extended else [ModelEntry(self.info.model)]


@asynccontextmanager
async def open_peer(
    endpoint: Endpoint,
    out: Output,
    model: str | None,
    *,
    tokenizer: str | None = None,
    record: str | None = None,
    on_frame: OnFrame | None = None,
    resume: ResumeOptions | None = None,
    passing_notes: bool = True,
) -> AsyncIterator[Peer]:
    """Connect, ask for the model's description, and close at the end. Shows on stderr how a load proceeds.

    passing_notes: whether to show there as well, on a terminal, what holds streams up.

    tokenizer: name or folder of one to use here; then the server is sent token ids, and with the model's name it need
    not describe the model. record: file for a trace of the frames. on_frame: called with each frame. resume: when to
    go on with a stream that was cut; None: by its defaults.
    Raises `ConnectError`, `RequestError`, `ServerError`, `FileError`, `UsageError` for a server that accepts ids only
    and no tokenizer, and the errors of loading a tokenizer.
    """
    from lmtool.protocol.lmtp.client import LmtpClient
    from lmtool.protocol.lmtp.wait_limits import WaitLimits

    async with _recording(out, record, endpoint, on_frame) as (observer, tap):
        waiting = Waiting(out, on_frame=observer)
        client = LmtpClient(
            endpoint,
            on_frame=waiting.frame,
            on_progress=waiting.progress,
            on_ignored=waiting.ignored,
            on_system=waiting.system if passing_notes else None,
            limits=WaitLimits.of(resume or ResumeOptions()),
        )
        async with _closing(client, waiting):
            await _connect(client, waiting)
            info = await _info(client, model, waiting, patient=None in (model, tokenizer))
            if info is None and tokenizer is not None:
                out.note(f"the server does not describe its model (LMQL's may never answer): continuing with {model}")
            info = info or ModelInfo(model or "", "", "unknown")
            resuming = Resuming(client, resume, waiting.repeated, lambda: client.answered)
            peer = Peer(resuming, info, None, client, waiting)
            if tokenizer is None:
                peer = _accepting_text(peer, f"the server at {endpoint.url}")
            else:
                peer = await _with_tokenizer(tokenizer, peer, out)
            if tap is not None and (known := await _known_tokenizer(peer)) is not None:
                from lmtool.trace.recorder import TokenSpelling

                tap.explain_by(TokenSpelling(known))  # for alternatives, which servers send as ids only
            yield peer


@asynccontextmanager
async def _closing(client: LmtpClient, waiting: Waiting) -> AsyncIterator[None]:
    try:
        yield
    finally:
        waiting.close()
        await client.close()


@asynccontextmanager
async def _recording(
    out: Output, path: str | None, endpoint: Endpoint, on_frame: OnFrame | None
) -> AsyncIterator[tuple[OnFrame | None, SessionTap | None]]:
    """The observer of frames that records them in a file, too, and the recording's tap; without a file `on_frame`."""
    if path is None:
        yield on_frame, None
        return
    from lmtool.trace.codec import Header
    from lmtool.trace.recorder import record_session

    transport = {"kind": "stdio"} if endpoint.url.startswith("stdio:") else {"kind": "websocket", "path": "/"}
    async with record_session(out, path, "client", Header(transport=transport)) as tap:
        opened = False

        def observer(direction: Literal[">", "<"], frame: str) -> None:
            nonlocal opened
            if not opened:  # not before there is a connection
                tap.opened(1, "lmtool")
                opened = True
            tap.frame(1, direction, frame)
            if on_frame is not None:
                on_frame(direction, frame)

        try:
            yield observer, tap
        finally:
            if opened:
                tap.ended(1, "client", 1000)


async def _connect(client: LmtpClient, waiting: Waiting) -> None:
    try:
        waiting.begin("no answer yet; waiting for the server ...")
        await client.open()
    except ConnectError as error:
        if not error.hints:
            error.hints = ("start one:    lmtool serve", "or name one:  -e ws://HOST:PORT")
        raise
    finally:
        waiting.answered()


async def _info(client: LmtpClient, model: str | None, waiting: Waiting, *, patient: bool) -> ModelInfo | None:
    waiting.begin()
    try:
        return await client.info_or_none(model, patient=patient)
    finally:
        waiting.answered()


class Waiting:
    """Shows on stderr how a load proceeds, or that the model does not answer yet."""

    def __init__(self, out: Output, on_frame: OnFrame | None = None) -> None:
        """on_frame: called with each frame that `frame` gets."""
        self._out = out
        self._on_frame = on_frame
        self._passing = PassingNote(out)
        self._began = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._console: Console | None = None
        self.say: Callable[[str], None] | None = None
        """Takes what is said in place of stderr, where a prompt stands there."""
        self.note: Callable[[str], None] = out.note
        """Writes a line to stderr."""
        self._phase = ""

    def begin(self, words: str = "connected; waiting for the model ...") -> None:
        """Start waiting for an answer. words: what to say if it takes long."""
        self._timer = asyncio.get_running_loop().call_later(SILENCE, self._note, words)

    def answered(self) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()

    def progress(self, progress: LoadProgress) -> None:
        """Show how far a load is: a bar on a terminal, an occasional line elsewhere."""
        self.answered()
        if progress.phase == "failed":
            return  # reported as the answer's error, too
        if self.say is not None:
            if progress.phase != self._phase and progress.phase != "ready":
                self.say(f"{progress.phase} {progress.model} ...")
            self._phase = progress.phase
            return
        from lmtool.serving.console import Console, unbuffered
        from lmtool.serving.events import Loading

        if self._console is None:
            self._console = Console(
                unbuffered(sys.stderr), color=self._out.note_color, terminal=sys.stderr.isatty(), quiet=self._out.quiet
            )
        self._console.emit(Loading(progress, time.monotonic() - self._began))

    def system(self, message: SystemMessage) -> None:
        """Show what holds a stream up, until something comes."""
        self._passing.show(message.message)

    def frame(self, direction: Literal[">", "<"], frame: str) -> None:
        """Make room for what a frame brings."""
        if direction == "<" and frame.startswith("TOKEN"):
            self._passing.clear()
        if self._on_frame is not None:
            self._on_frame(direction, frame)

    def ignored(self, fields: tuple[str, ...]) -> None:
        """Name the fields of a request that had no effect."""
        self._note(f"the server ignored: {', '.join(fields)}")

    def repeated(self, reason: LmtoolError) -> None:
        """Say at once why a stream has to go on over a new connection, and that it tries to."""
        self._note(f"{reason.message}; trying again")

    def _note(self, text: str) -> None:
        (self.say or self.note)(text)

    def close(self) -> None:
        """Clear the progress bar, and what holds streams up."""
        self.answered()
        self._passing.clear()
        if self._console is not None:
            self._console.close()


def _accepting_text(peer: Peer, server: str) -> Peer:
    if peer.info.tokenizer is None and not peer.info.text_only:
        raise UsageError(
            f"{server} accepts and sends token ids only",
            "name its model's tokenizer, a hub name or a folder:  --tokenizer NAME",
        )
    return peer


async def _with_tokenizer(name: str, peer: Peer, out: Output) -> Peer:
    """Convert text to token ids here, with the user's tokenizer."""
    info = peer.info
    from lmtool.inference.text.text_model import TextModel
    from lmtool.inference.text.tokenizer import load_tokenizer
    from lmtool.inference.tiny.path import source_of

    own = await asyncio.to_thread(load_tokenizer, source_of(name))
    if info.tokenizer is not None and info.tokenizer.sha256 != own.info.sha256:
        out.warn(f"{name} is not the tokenizer of the server's model ({info.tokenizer.name}): expect nonsense")
    elif info.vocab_size is not None and own.vocab_size > info.vocab_size:
        out.warn(
            f"{name} has {own.vocab_size} ids, the server's model only {info.vocab_size}: expect errors or nonsense"
        )
    described = replace(info, tokenizer=own.info, chat_template=own.has_chat_template)
    return replace(peer, model=TextModel(peer.model, own), info=described, tokenizer=own)


async def token_text_of(peer: Peer) -> Callable[[int], str] | None:
    """A function from id to text, for alternatives, which servers send as ids only; None without a tokenizer.

    Without a tokenizer of the user's, the server's is used if its files are on this machine: the embedded model's, or
    one in the hub's cache, with the server's hash.
    """
    own = await _known_tokenizer(peer)
    return None if own is None else partial(_token_text, own)


def _token_text(tokenizer: TextTokenizer, token: int) -> str:
    text = tokenizer.piece(token).decode("utf-8", "replace")
    return text if text and "\ufffd" not in text else tokenizer.token(token) or f"#{token}"


async def _known_tokenizer(peer: Peer) -> TextTokenizer | None:
    """The user's tokenizer, or else the server's where it is on this machine."""
    if peer.tokenizer is not None or peer.info.tokenizer is None:
        return peer.tokenizer
    return await asyncio.to_thread(local_tokenizer, peer.info.tokenizer)


def local_tokenizer(description: TokenizerInfo) -> TextTokenizer | None:
    """The tokenizer with this hash, if its files are on this machine."""
    import hashlib

    from lmtool.inference.text.tokenizer import load_tokenizer
    from lmtool.inference.tiny.path import MODEL_DIR

    for file in _candidates(description, MODEL_DIR):
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == description.sha256:
            return load_tokenizer(str(file.parent))
    return None


def _candidates(description: TokenizerInfo, embedded: Path) -> Iterator[Path]:
    yield embedded / "tokenizer.json"
    if description.name.count("/") <= 1 and not description.name.startswith("."):
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        with suppress(HFValidationError):  # not a name of the hub's, so not in its cache
            cached = try_to_load_from_cache(description.name, "tokenizer.json")
            if isinstance(cached, str):
                yield Path(cached)
