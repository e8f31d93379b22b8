"""What the calls of the Python face take: prompts and sampling parameters as plain Python values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from lmtool.core.buffer import Buffer
from lmtool.core.types import BufferSlice, ChatMessage, ChatPrompt, MixedPrompt, SamplingParams

if TYPE_CHECKING:
    from lmtool.core.types import Constraint, LogprobsMode, Prompt

PromptLike: TypeAlias = (
    "str | Buffer | Sequence[int | str | Buffer | BufferSlice] | Sequence[ChatMessage | Mapping[str, str]] | ChatPrompt"
)
"""A text (never templated), token ids, texts, ids and buffers in a row, or messages (always templated), as objects or
as `{"role", "content"}`; with tools, or the beginning of the answer: a `ChatPrompt`."""

ConstraintLike: TypeAlias = "Constraint | Mapping[str, object]"
"""A constraint as `lmtool.core.constraint` makes it, or as it stands in a GENERATE (GEN-13)."""


class Sampling(TypedDict, total=False):
    """Keyword arguments of `generate` and `chat`: `deadline`, and the fields of `SamplingParams`, which says more."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int | None
    logit_bias: Mapping[int, float]
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    min_tokens: int
    ignore_eos: bool
    top_logprobs: int
    logprobs_mode: LogprobsMode
    deadline: float | None


class EngineOptions(TypedDict, total=False):
    """Keyword arguments of `load` and `serve`: the fields of `EngineConfig`, which describes them."""

    device: str
    dtype: str
    kernels: str
    quantize: str | None
    kv_cache_dtype: str
    max_streams: int
    max_batch_tokens: int | None
    max_context: int | None
    kv_cache_bytes: int | None
    prefix_cache: bool
    speculation: bool
    jump_forward: bool
    step_ahead: bool
    max_logprobs: int | None
    threads: int | None
    deterministic: bool
    trust_remote_code: bool
    revision: str | None


def as_prompt(prompt: PromptLike) -> Prompt:
    """The prompt in the form of requests. Raises `TypeError` for anything else."""
    if isinstance(prompt, str | ChatPrompt):
        return prompt
    entries = [prompt] if isinstance(prompt, Buffer) else list(prompt)
    if all(isinstance(entry, int) for entry in entries):
        return tuple(entry for entry in entries if isinstance(entry, int))
    parts = [part for entry in entries if (part := _part(entry)) is not None]
    if len(parts) == len(entries):
        return MixedPrompt(tuple(parts))
    return ChatPrompt(tuple(map(_message, entries)))


def _part(entry: object) -> str | tuple[int, ...] | BufferSlice | None:
    """An entry of a row of texts, ids and buffers; None for any other."""
    if isinstance(entry, int):
        return (entry,)
    if isinstance(entry, Buffer):
        return entry.whole()
    return entry if isinstance(entry, str | BufferSlice) else None


def _message(part: object) -> ChatMessage:
    if isinstance(part, ChatMessage):
        return part
    if isinstance(part, Mapping) and set(part) == {"role", "content"}:
        return ChatMessage(str(part["role"]), str(part["content"]))
    raise TypeError(
        f"a prompt is a text, token ids, or messages with role and content; found {type(part).__name__}: {part!r:.60}"
    )


def wants_text(prompt: PromptLike) -> bool:
    """True if outputs carry text by default: not where the prompt is token ids and buffers alone."""
    if isinstance(prompt, str | ChatPrompt):
        return True
    return not isinstance(prompt, Buffer) and any(not isinstance(part, int | Buffer | BufferSlice) for part in prompt)


def as_sampling(keywords: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters from keyword arguments. Raises `TypeError` for an unknown name, with the nearest known."""
    names = [field.name for field in fields(SamplingParams)]
    for name in keywords:
        if name not in names:
            import difflib

            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise TypeError(f"{name!r} is no sampling parameter; {hint}")
    values = dict(keywords)
    stop = values.get("stop", ())
    values["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    values["stop_token_ids"] = tuple(values.get("stop_token_ids", ()))
    return SamplingParams(**values)
