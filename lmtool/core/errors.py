"""The tree of errors: each class knows its exit code and wire name, each instance says what and what next."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self


class LmtoolError(Exception):
    """Something a person can act on.

    message: what happened, with the value, and what was expected. hints: what to do next, one short line each.
    """

    exit_code: ClassVar[int] = 1
    """Exit status of a command that ends with this error."""
    code: ClassVar[str] = "error"
    """Machine-readable kind, sent beside the sentence on every wire."""
    retryable: bool = False
    """True if the same request may succeed when it is sent again; an instance may know better than its class."""
    retry_after: int = 0
    """Seconds after which the same request may succeed; 0 where it will not, or that is not known."""

    def __init__(self, message: str, *hints: str) -> None:
        super().__init__(message)
        self.message = message
        self.hints = hints

    @property
    def sentence(self) -> str:
        """Message and hints in one line."""
        return "; ".join((self.message, *self.hints))


class UsageError(LmtoolError):
    """The command line or the arguments of a call make no sense."""

    exit_code = 2
    code = "usage"


class ConnectError(LmtoolError):
    """No connection, or the connection is gone; streams that were running on it are lost."""

    exit_code = 3
    code = "connection"
    retryable = True


class ServerError(LmtoolError):
    """The server answered a request with an error; the connection lives on."""

    exit_code = 4
    code = "server"
    retryable = True


class InvalidAnswerError(ServerError):
    """A finished answer is not valid under its strict schema."""

    code = "invalid_answer"
    retryable = False


class AccessDeniedError(ServerError):
    """The server refuses this client: it requires a key, or does not know the host name that it was asked for."""

    code = "access_denied"
    retryable = False


class RemoteProtocolError(LmtoolError):
    """The peer broke the protocol."""

    exit_code = 5
    code = "protocol"


class LocalProtocolError(LmtoolError):
    """The caller broke the protocol; nothing was sent."""

    exit_code = 2
    code = "usage"


class TimeLimitError(LmtoolError):
    """The time allowed for an answer is over."""

    exit_code = 6
    code = "timeout"
    retryable = True


class FileError(LmtoolError):
    """An input file is missing, unreadable, or not what it should be."""

    exit_code = 7
    code = "file"


class ResourceError(LmtoolError):
    """This machine lacks something: a free port, a device, memory, a model, an optional package."""

    exit_code = 8
    code = "resource"


class ModelLoadError(ResourceError):
    """The model was not found or cannot be loaded."""

    code = "model_load"


class ModelNotFoundError(ModelLoadError):
    """There is no such model, neither here nor on the hub, or the hub cannot be reached."""


class OutOfMemoryError(ResourceError):
    """The device has no room for the model or for a step of it."""

    code = "out_of_memory"
    retryable = True


class DeviceLostError(ResourceError):
    """Nothing can be computed any more on the device of a model; only another process may."""


class RequestError(LmtoolError):
    """A request that cannot be served as it is. Ends its own stream and nothing else."""

    exit_code = 4
    code = "invalid_request"


class ContextOverflowError(RequestError):
    """Prompt and output do not fit into the model's context."""

    code = "context_overflow"

    @classmethod
    def of(cls, tokens: int | str, limit: int, context: str = "", hint: str = "shorten the prompt") -> Self:
        """The error of a prompt of `tokens` tokens where `limit` are allowed. context: the context length, if known.

        Coding agents compact a conversation, and client libraries raise their own error, when they read these words:
        the first half is Anthropic's, the second OpenAI's.
        """
        length = context or f"{limit} tokens"
        return cls(
            f"prompt is too long: {tokens} tokens > {limit} maximum; this model's maximum context length is {length}",
            hint,
        )


class ConstraintError(RequestError):
    """A constraint that cannot be enforced: badly written, impossible, or with a part that is not supported."""

    code = "invalid_constraint"


class ConstraintTooComplexError(ConstraintError):
    """A constraint that goes beyond a limit on time, size or states, before the stream began or while it ran."""

    code = "constraint_too_complex"


class UnknownTokenError(RequestError):
    """A token id outside the model's vocabulary."""

    code = "unknown_token"


class UnknownModelError(RequestError):
    """A model that is not served here."""

    code = "unknown_model"


class UnknownBufferError(RequestError):
    """A buffer that the connection does not have, or has no more."""

    code = "unknown_buffer"


class OverloadedError(RequestError):
    """A limit on streams, connections or queue length is reached; try again later."""

    code = "overloaded"
    retryable = True
    retry_after = 1


class RateLimitError(OverloadedError):
    """A limit of the client's key or address is reached: on what runs at once, or on what a minute brings."""

    code = "rate_limit_exceeded"


def deadline_error(seconds: float) -> TimeLimitError:
    """The error of a stream that has not ended within its request's `deadline`; its time is over, also elsewhere."""
    error = TimeLimitError(f"the deadline of {seconds:g} s is over", "send the request again with a longer one")
    error.retryable = False
    return error


def unnamed_model(served: int, *hints: str) -> UnknownModelError:
    """The error of a request that names no model where not exactly one is served. hints: the names."""
    return UnknownModelError(f"the request names no model, and {served} are served", *hints)


def rebuilt(
    kind: type[LmtoolError],
    sentence: str,
    hints: Sequence[str] = (),
    *,
    retryable: bool | None = None,
    retry_after: int = 0,
) -> LmtoolError:
    """The error that was told elsewhere in these words. sentence: as `LmtoolError.sentence`.

    retryable, retry_after: what was told; None and 0 leave it at what the class says.
    """
    error = kind(sentence.removesuffix("".join(f"; {hint}" for hint in hints)), *hints)
    if retryable is not None:
        error.retryable = retryable
    if retry_after:
        error.retry_after = retry_after
    return error


def kind_of(code: str | None) -> type[LmtoolError]:
    """The class of errors with this code, where two share one the more general; `ServerError` for an unknown code.

    So also for the code of a class whose errors are made of more than a message and hints.
    """
    kind = _kinds(LmtoolError).get(code or "", ServerError)
    return kind if kind.__init__ is LmtoolError.__init__ else ServerError


def _kinds(base: type[LmtoolError]) -> dict[str, type[LmtoolError]]:
    kinds: dict[str, type[LmtoolError]] = {}
    for child in base.__subclasses__():
        kinds |= _kinds(child)
    return {**kinds, base.code: base} if "code" in vars(base) else kinds  # a room's own kinds share a code
