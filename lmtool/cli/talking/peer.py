"""A model at an endpoint, ready to be talked to in text: connected, described, with a tokenizer where it has none."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lmtool.errors import ConnectError, UsageError
from lmtool.types import ModelInfo

if TYPE_CHECKING:
    from lmtool.cli.invocation import Common
    from lmtool.cli.output import Output
    from lmtool.cli.serving.console import Console
    from lmtool.interfaces import TokenModel
    from lmtool.lmtp.client import LmtpClient
    from lmtool.text.tokenizer import TextTokenizer
    from lmtool.types import LoadProgress, TokenizerInfo

OnFrame = Callable[[Literal[">", "<"], str], None]

SILENCE = 2.0
"""Seconds without an answer after which the user is told what is being waited for."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A model that takes text, and what it told about itself."""

    model: TokenModel
    info: ModelInfo
    tokenizer: TextTokenizer | None
    """The one that was asked for; None where the server tokenizes."""


@asynccontextmanager
async def open_peer(
    common: Common, out: Output, model: str | None, *, tokenizer: str | None = None, on_frame: OnFrame | None = None
) -> AsyncIterator[Peer]:
    """Connect, ask what is served under this name, and close at the end. Tells on stderr how a load proceeds.

    tokenizer: name or folder of the one to use here; then the server is sent token ids, and with the model's name there
    is nothing that it must tell first. Raises `ConnectError`, `RequestError`, `ServerError`, `UsageError` for a server
    that takes ids only and no tokenizer, and what loading a tokenizer raises.
    """
    from lmtool.cli.wiring import connect

    waiting = Waiting(out)
    client = connect(
        common.address,
        api_key=common.api_key,
        on_frame=on_frame,
        on_progress=waiting.progress,
        on_ignored=waiting.ignored,
    )
    try:
        await _connect(client)
        info = await _info(client, model, waiting, patient=None in (model, tokenizer))
        if info is None and tokenizer is not None:
            out.note(f"the server does not say what it serves (LMQL's may never answer): going on with {model}")
        info = info or ModelInfo(model or "", "", "unknown")
        yield (
            _speaking_text(client, info, common.url) if tokenizer is None else await _with(tokenizer, client, info, out)
        )
    finally:
        waiting.close()
        await client.close()


async def _connect(client: LmtpClient) -> None:
    try:
        await client.open()
    except ConnectError as error:
        if not error.hints:
            error.hints = (
                "start one:      lmtool serve",
                "or point here:  lmtool chat --endpoint ws://HOST:PORT ...",
            )
        raise


async def _info(client: LmtpClient, model: str | None, waiting: Waiting, *, patient: bool) -> ModelInfo | None:
    waiting.begin()
    try:
        return await client.info_if_told(model, patient=patient)
    finally:
        waiting.answered()


class Waiting:
    """Tells on stderr what is being waited for: how a load proceeds, or that nothing comes."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._began = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._console: Console | None = None

    def begin(self) -> None:
        """Start to wait for an answer."""
        self._timer = asyncio.get_running_loop().call_later(SILENCE, self._still)

    def answered(self) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()

    def _still(self) -> None:
        self._out.note("connected; waiting for the model ...")

    def progress(self, progress: LoadProgress) -> None:
        """Show how far a load is: a bar on a terminal, a line now and then elsewhere."""
        self.answered()
        if progress.phase == "failed":
            return  # the answer says so as well, as an error
        from lmtool.cli.serving.console import Console, unbuffered
        from lmtool.cli.serving.status import Loading

        if self._console is None:
            self._console = Console(
                unbuffered(sys.stderr), color=self._out.note_color, terminal=sys.stderr.isatty(), quiet=self._out.quiet
            )
        self._console.tell(Loading(progress, time.monotonic() - self._began))

    def ignored(self, fields: tuple[str, ...]) -> None:
        """Tell which fields of a request had no effect."""
        self._out.note(f"the server ignored: {', '.join(fields)}")

    def close(self) -> None:
        """Write what is left."""
        self.answered()
        if self._console is not None:
            self._console.close()


def _speaking_text(client: LmtpClient, info: ModelInfo, url: str) -> Peer:
    if info.tokenizer is None:
        raise UsageError(
            f"the server at {url} takes and gives token ids only",
            "name its model's tokenizer, a hub name or a folder:  --tokenizer NAME",
        )
    return Peer(client, info, None)


async def _with(name: str, client: LmtpClient, info: ModelInfo, out: Output) -> Peer:
    """Put a tokenizer of our own in front of the server."""
    from lmtool.text.text_model import TextModel
    from lmtool.text.tokenizer import load_tokenizer

    own = await asyncio.to_thread(load_tokenizer, name)
    if info.tokenizer is not None and info.tokenizer.sha256 != own.info.sha256:
        out.warn(f"{name} is not the tokenizer of the server's model ({info.tokenizer.name}): expect nonsense")
    elif info.vocab_size is not None and own.vocab_size > info.vocab_size:
        out.warn(
            f"{name} has {own.vocab_size} ids, the server's model only {info.vocab_size}: expect errors or nonsense"
        )
    described = replace(info, tokenizer=own.info, chat_template=own.has_chat_template)
    return Peer(TextModel(client, own), described, own)


async def spelling_of(peer: Peer) -> Callable[[int], str] | None:
    """Return a function from id to text, for alternatives, of which servers tell only ids; None without a tokenizer.

    Without one of our own, the server's is used if its files are on this machine: the embedded model's, or one in the
    hub's cache, with the hash that the server told.
    """
    own = peer.tokenizer
    if own is None and peer.info.tokenizer is not None:
        own = await asyncio.to_thread(tokenizer_here, peer.info.tokenizer)
    if own is None:
        return None
    return partial(_spelled, own)


def _spelled(tokenizer: TextTokenizer, token: int) -> str:
    text = tokenizer.piece(token).decode("utf-8", "replace")
    return text if text and "\ufffd" not in text else tokenizer.token(token) or f"#{token}"


def tokenizer_here(wanted: TokenizerInfo) -> TextTokenizer | None:
    """The tokenizer of this hash, where its files are on this machine; reads them."""
    import hashlib

    from lmtool.text.tokenizer import load_tokenizer
    from lmtool.tiny.path import MODEL_DIR

    for file in _candidates(wanted, MODEL_DIR):
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == wanted.sha256:
            return load_tokenizer(str(file.parent))
    return None


def _candidates(wanted: TokenizerInfo, embedded: Path) -> Iterator[Path]:
    yield embedded / "tokenizer.json"
    if wanted.name.count("/") <= 1 and not wanted.name.startswith("."):
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        with suppress(HFValidationError):  # a name that the hub cannot have is in no cache
            cached = try_to_load_from_cache(wanted.name, "tokenizer.json")
            if isinstance(cached, str):
                yield Path(cached)
