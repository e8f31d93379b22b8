"""The interfaces between rooms: models, streams, tokenizers, guides, protocols."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

from lmtool.core.prompt_limits import PromptLimits
from lmtool.core.types import (
    Constraint,
    GenerateRequest,
    LoadProgress,
    ModelInfo,
    Prompt,
    ScoreRequest,
    TokenizerInfo,
    TokenOutput,
    ToolCallFormat,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    import numpy as np
    from numpy.typing import NDArray
    from starlette.routing import BaseRoute

    from lmtool.core.errors import LmtoolError
    from lmtool.core.metrics import MetricFamily
    from lmtool.core.model_entry import ModelEntry
    from lmtool.core.prompt_limits import LimitsByModel
    from lmtool.core.reasoning import ReasoningFormat, ThoughtMarks

Sink: TypeAlias = Callable[[Sequence[TokenOutput]], None]
"""Takes all outputs of one step for one connection. Called in the loop that submitted; must not block or raise."""

Unsubscribe: TypeAlias = Callable[[], None]


def client_of(sink: Sink) -> Hashable:
    """Whose streams a sink takes, who has turns of its own while streams wait.

    A sink that stands before another one has the attribute `client`: that of the other. Any other is itself the client.
    """
    client: Hashable = getattr(sink, "client", sink)
    return client


class StreamHandle(Protocol):
    """The caller's handle on one running stream. Every method is harmless after the stream's end."""

    def cancel(self) -> None:
        """End the stream within one step; its last output has `finish_reason` `cancelled`."""

    def pause(self) -> None:
        """Produce nothing more for this stream until `resume`, at the latest after the current step."""

    def resume(self) -> None:
        """Go on after `pause`, losing nothing."""


class QueuePlace(NamedTuple):
    """Where a stream waits for its turn."""

    place: int
    """In the order in which waiting streams begin, from 1."""
    seconds: float | None
    """Until it begins, estimated by how fast others have begun; None where that was not measured yet."""


@runtime_checkable
class Queued(Protocol):
    """A `StreamHandle` that tells where its stream waits."""

    def queue_place(self) -> QueuePlace | None:
        """The place of the stream; None where it does not wait, or that is not known."""


def place_of(handle: StreamHandle | None) -> QueuePlace | None:
    """Where a stream waits, as far as its handle tells."""
    return handle.queue_place() if isinstance(handle, Queued) else None


@runtime_checkable
class Timed(Protocol):
    """A `StreamHandle` that tells when its stream began."""

    def began_at(self) -> float | None:
        """When its first step was planned, by `time.perf_counter`; None before that, and where it is not known."""


def began_at(handle: StreamHandle | None) -> float | None:
    """When a stream's turn came, as far as its handle tells."""
    return handle.began_at() if isinstance(handle, Timed) else None


class TokenModel(Protocol):
    """Whatever streams tokens: the engine, an LMTP client, a replayed trace."""

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """Start a stream; call from a running event loop. Outputs go to `sink`, never before `submit` returned.

        A request that cannot be served (unknown id, prompt too long, unknown model) does not raise: the stream
        ends with `error`, like one that fails later.
        """

    async def info(self, model: str | None = None) -> ModelInfo:
        """What is served under this name (None: the only model). Raises `RequestError` for a name not served."""


class Face(Protocol):
    """One protocol on the port: what a server mounts, waits for and counts."""

    def routes(self) -> Sequence[BaseRoute]:
        """Routes for a starlette application; they are served behind the door, `access.asgi.Door`."""

    @property
    def running(self) -> int:
        """Streams or requests of clients that are being answered."""

    async def drain(self, seconds: float) -> bool:
        """Take nothing new and wait for what runs; whether all of it ended by itself within `seconds`."""

    def metrics(self) -> Iterable[MetricFamily]:
        """What this protocol adds to `/metrics`."""


class UpstreamExchange(Protocol):
    """One exchange with a server that is called, as it goes, for a recorder or an inspector."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The status and headers of the answer."""

    def data(self, data: bytes) -> None:
        """More of the answer's body."""

    def end(self, *, complete: bool) -> None:
        """The exchange is over. complete: whether the answer came to its end."""


class UpstreamTap(Protocol):
    """Is shown every exchange with servers that are called."""

    def begin(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> UpstreamExchange:
        """A request is sent."""


@runtime_checkable
class Limited(Protocol):
    """A `TokenModel` that tells which prompts it refuses, so that these are not read to their end."""

    @property
    def limits(self) -> LimitsByModel:
        """Of the models that are in memory now."""


@runtime_checkable
class Counted(Protocol):
    """A model that can be described at any time, with how many streams it has."""

    @property
    def info_now(self) -> ModelInfo:
        """What is served, with the numbers of streams as they are now."""


def current_limits(model: TokenModel) -> LimitsByModel:
    """Which prompts a model refuses, as far as that is known now."""
    if isinstance(model, Limited):
        return model.limits
    own = PromptLimits.of(model.info_now) if isinstance(model, Counted) else None
    return {} if own is None else {None: own}


@runtime_checkable
class Tokenized(Protocol):
    """A `TokenModel` whose tokenizers are in this process."""

    def tokenizer(self, model: str | None = None) -> Tokenizer | None:
        """The tokenizer of a served model, None where it is not here or the model is not in memory."""


def tokenizer_of(model: TokenModel, name: str | None = None) -> Tokenizer | None:
    """The tokenizer of the model served under a name, where it is in this process."""
    return model.tokenizer(name) if isinstance(model, Tokenized) else None


@runtime_checkable
class LoadedModel(TokenModel, Protocol):
    """A `TokenModel` that holds memory or a device until it is closed."""

    async def drain(self, seconds: float) -> int:
        """Accept nothing new and let running streams end; the number still running after `seconds`."""

    def close(self) -> None:
        """Give everything back; streams still running end with `error`. Blocks: call it off the event loop."""


class ProgressSource(Protocol):
    """Whatever can tell how a model's load proceeds."""

    def subscribe(self, model: str | None, listener: Callable[[LoadProgress], None]) -> Unsubscribe:
        """Call `listener` in the event loop: once now, then at each change until the phase is `ready` or `failed`."""


@runtime_checkable
class Available(Protocol):
    """Models that tell whether any of them can answer."""

    @property
    def can_answer(self) -> bool:
        """True if a request that comes now has a model to go to, loaded or to be loaded for it."""


class Catalogue(Protocol):
    """Lists what is served, without loading any of it or waiting for anything."""

    def models(self) -> Sequence[ModelEntry]:
        """Every served model; under `auto` those that are in memory or on their way."""

    def entry(self, name: str | None) -> ModelEntry:
        """The model that a request with this name would get. Raises `UnknownModelError`."""


@runtime_checkable
class ModelControl(Protocol):
    """Whatever loads and unloads its models on request."""

    async def load(self, name: str) -> None:
        """Return once the model is in memory. Raises `UnknownModelError`, or the error of the load."""

    async def unload(self, name: str) -> None:
        """Return once the model's memory is given back. Raises `UnknownModelError`.

        Raises `OverloadedError` for one that is in use or on its way, `RequestError` for one that is pinned.
        """


class Detokenizer(Protocol):
    """Turns one stream's ids into text, never half a character."""

    def push(self, token: int) -> str:
        """Take the next id; return the whole characters that it completes, possibly none."""

    def finish(self) -> str:
        """Return what is still held back, an open character as U+FFFD. Nothing may be pushed afterwards."""


class Tokenizer(Protocol):
    """Text to ids and back, for one model."""

    limits: PromptLimits | None
    """Of the model; a text that is beyond them is refused, before it is tokenized or soon after."""

    @property
    def longest_token_bytes(self) -> int:
        """Bytes of the longest token."""

    @property
    def info(self) -> TokenizerInfo:
        """The tokenizer's identity."""

    @property
    def digest(self) -> str:
        """A hash of all that its ids and texts depend on, the chat template included, for `ModelInfo.fingerprint`."""

    @property
    def has_chat_template(self) -> bool:
        """True if a `ChatPrompt` can be encoded."""

    @property
    def tool_calls(self) -> ToolCallFormat:
        """How the model writes tool calls."""

    @property
    def reasoning(self) -> ReasoningFormat | None:
        """How the model writes thoughts, see `ModelInfo.reasoning`."""

    def special_marks(self, marks: Sequence[str]) -> dict[int, str]:
        """Those of these texts that are special tokens, which never show as text, by their ids."""

    def token(self, token_id: int) -> str | None:
        """An id's name in the vocabulary, such as `Ġthe` or `<0x0A>`; None for an unknown id."""

    def piece(self, token_id: int) -> bytes:
        """Bytes that an id adds to a text, maybe part of a character; none for special and unknown ids."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text; `special` adds what the model expects at a text's start, such as its bos id."""

    def encode_continuation(self, text: str) -> list[int]:
        """Token ids of a text that follows another: nothing that belongs to a text's start, no bos and no blank."""

    def encode_prompt(self, prompt: Prompt, *, special: bool = True) -> list[int]:
        """Token ids of a prompt in any form, a conversation under the model's chat template.

        special: as in `encode`, for a text. Raises `RequestError` when the template refuses the messages or there is
        none, and for a text that is no Unicode; `ContextOverflowError` for what is beyond `limits`.
        """

    async def tokenize(self, prompt: Prompt, *, special: bool = True) -> list[int]:
        """`encode_prompt` without blocking the event loop: a long prompt is encoded in a worker thread."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a whole sequence of ids, special tokens left out."""

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """`decode` without blocking the event loop."""

    def detokenizer(self, context: Sequence[int] = ()) -> Detokenizer:
        """A fresh detokenizer for a stream that continues `context` (its prompt)."""


class Guide(Protocol):
    """One stream's way through its constraint. Used by one thread at a time; no method raises.

    What goes wrong inside shows in `error` and ends this stream alone. Ask it after every `fill` and `advance`: a
    guide in error fills a mask that allows nothing but the model's eos ids.
    """

    @property
    def slow(self) -> bool:
        """True if its last mask took so long that no other stream should wait for the next one."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the constraint is not held, or more narrowly than it says, one sentence each."""

    def advance(self, token: int) -> None:
        """Take the token that the stream was given. An eos id ends the guide where `may_end`, and is an error else."""

    def forced(self) -> list[int]:
        """Return the tokens that must follow now, possibly none; they are not taken yet."""

    def accepts(self, draft: Sequence[int]) -> int:
        """Return how many tokens of a draft are legal, from its start; the guide stays where it is."""

    def fork(self) -> Guide:
        """Return an independent guide at the same place."""

    def may_end(self) -> bool:
        """True if the text so far is a whole match, so that eos is legal."""

    def ended(self) -> bool:
        """True if nothing but eos can follow: the text is a whole match and no token goes on from it."""

    def error(self) -> LmtoolError | None:
        """Return why the stream cannot go on, if so; it must be ended with this error."""


class Verdict(NamedTuple):
    """The result of validating a finished answer."""

    error: LmtoolError | None = None
    """Ends the stream in place of `stop`."""
    warnings: tuple[str, ...] = ()
    """Sent with the stream's last output."""


class AnswerCheck(Protocol):
    """Validates what streams have written under constraints. Safe from any thread."""

    def applies_to(self, constraint: Constraint) -> bool:
        """True if there is anything to validate under a constraint."""

    def begin(self, constraint: Constraint, text: str, warnings: Sequence[str]) -> Future[Verdict]:
        """Begin to validate the text of a stream that its constraint has ended; done within a bounded time.

        warnings: what of the constraint was not held.
        """

    def close(self) -> None:
        """Give everything back; what is being validated ends with an error."""


class GuideCompiler(Protocol):
    """Makes guides for one model, and fills the masks of all its constrained streams at once. Safe from any thread."""

    def compile(self, constraint: Constraint | None, marks: ThoughtMarks | None = None) -> Future[Guide]:
        """Begin to compile; never blocks and never raises.

        The result is a fresh guide at the constraint's start, its exception an `LmtoolError` for the client, within the
        deadline. `cancel` it when the stream has ended. marks: of a thought before; then a constraint may lack.
        """

    def fill(self, rows: Sequence[tuple[Guide, int]], mask: NDArray[np.int32]) -> None:
        """Write for each (guide, row) which tokens may come next into that row of the mask; other rows stay.

        mask: [rows, ceil(V / 32)], contiguous; bit `i % 32` of word `i // 32` allows token i. Blocks for the time it
        takes (guides of this compiler only; the GIL is free meanwhile) and never raises: see `Guide.error`. For one
        thread at a time, and for others beside it where each has a single row.
        """

    def fill_drafts(self, rows: Sequence[tuple[Guide, int, Sequence[int]]], mask: NDArray[np.int32]) -> None:
        """Fill `len(draft) + 1` rows from each (guide, first row, draft): what may follow each beginning of the draft.

        Rows behind the first illegal token allow everything: accept nothing there. The guides stay where they are.
        """

    def close(self) -> None:
        """Stop compiling; what waits fails. Guides already made go on."""
