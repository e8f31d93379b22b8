"""The vocabulary of the seams: what one room hands to another (standard library only)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.core.frozen import made_fast

if TYPE_CHECKING:
    from lmtool.core.chat_options import ChatOptions
    from lmtool.core.reasoning import Reasoning, ReasoningFormat, ThoughtMarks, ThoughtSignature
    from lmtool.core.seam import Seam

StreamId: TypeAlias = Hashable
"""Names a stream within its sink. Chosen by whoever submits the request; opaque to everyone else."""

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "prefill", "content_filter"]
"""Why a stream ended: eos or a stop condition, the token limit, its client's CANCEL, `prefill_only`, a filter."""

LogprobsMode: TypeAlias = Literal["raw", "biased", "processed"]
"""Which normalised distribution a logprob is taken from. `raw`: log-softmax of the model's own logits. `biased`: after
`logit_bias` (a forced token has logprob 0). `processed`: after everything, the distribution that was sampled from."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool, as an assistant's turn has it."""

    id: str
    """What the tool's answer refers to."""
    name: str
    arguments: str
    """The text of a JSON object, unless a model wrote something else, see `tool_arguments`."""


ROLES = ("system", "developer", "user", "assistant", "tool")
"""Of the turns of any conversation; a model's template may name more."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation, before the chat template is applied."""

    role: str
    """One of `ROLES`, or another that the model's chat template names."""
    content: str
    """The turn's text."""
    tool_calls: tuple[ToolCall, ...] = ()
    """What an assistant's turn calls."""
    tool_call_id: str | None = None
    """Which call a tool's turn answers."""
    name: str | None = None
    """Of who speaks, or of the tool that answers, where the template shows it."""
    tokens: tuple[int, ...] | None = None
    """The exact ids of its text, in place of `content` and `reasoning`, such as those of an earlier answer."""
    reasoning: str = ""
    """What an assistant's turn thought before its text, for templates that show it."""


ConstraintKind: TypeAlias = Literal["json_schema", "regex", "choice", "grammar", "structural_tag"]
"""What the text of a `Constraint` is written in."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a stream's whole text must match; made from a client's words by `lmtool.core.constraint`. Hashable."""

    kind: ConstraintKind
    text: str
    """Canonical: compact JSON for `json_schema`, `choice` (a list of texts) and `structural_tag`, else the source."""
    strict: bool = True
    """True if a keyword that cannot be enforced exactly is refused; otherwise it is ignored, with a warning."""
    any_whitespace: bool = False
    """True if JSON may have blanks and line breaks between its parts; otherwise it is compact."""


@dataclass(frozen=True, slots=True)
class NamedProcessor:
    """A logits processor that another package brings, see `lmtool.logits_processors`."""

    name: str
    """Of its entry point."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    """Plain JSON values, given to it by name."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, which the model's chat template turns into a prompt that the assistant's answer continues."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Mapping[str, object], ...] = ()
    """What the assistant may call, each as OpenAI's API has it: `{"type": "function", "function": {...}}`."""
    chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Further variables of the template, by name."""
    prefill: str = ""
    """The beginning of the assistant's answer, which the model continues."""


@dataclass(frozen=True, slots=True)
class BufferSlice:
    """The beginning of a buffer, in place of which an LMTP connection puts its ids (SPEC.md, BUF)."""

    buffer: str
    length: int | None = None
    """How many ids; None: all."""


@dataclass(frozen=True, slots=True)
class MixedPrompt:
    """Texts, token ids and buffers in a row."""

    parts: tuple[str | tuple[int, ...] | BufferSlice, ...]
    """Each text is tokenized by itself: the first part as a text's start, any other as a continuation."""


Prompt: TypeAlias = "tuple[int, ...] | str | MixedPrompt | ChatPrompt"
"""Token ids as they are (`()` is an empty prompt), a text (never templated), both in a row, or a conversation."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stop conditions of one stream. Defaults are LMTP's; ranges: `lmtool.core.sampling_parameters`."""

    max_tokens: int = 32
    """The stream ends with `length` after this many tokens; 0 ends it without a token."""
    temperature: float = 0.0
    """0 or less picks the most likely token (greedy)."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches this; 1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this times the most likely one; 0 drops none."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output (CTRL, arXiv:1909.05858)."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token already generated."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each time it was generated."""
    seed: int | None = None
    """Same seed, same prompt and same parameters give the same tokens, alone or in a crowd; None draws a seed."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id to the number of nats added to its logit."""
    stop: tuple[str, ...] = ()
    """Texts that end the stream with `stop`; the match itself is not part of the stream's text."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the stream with `stop` once sent, beside the model's own eos ids."""
    min_tokens: int = 0
    """No eos or stop id is picked before this many tokens."""
    ignore_eos: bool = False
    """Go on to `max_tokens` even when the model picks an eos id."""
    top_logprobs: int = 1
    """Alternatives of each token, best first, plus the chosen one if not among them; clamped to the server's limit."""
    logprobs_mode: LogprobsMode = "biased"
    """The distribution that `logprob` and `top_logprobs` are taken from."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Ask for a new stream of tokens that continues a prompt."""

    stream_id: StreamId
    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    model: str | None = None
    """Which served model; None means the only one."""
    text: bool = False
    """Each output also carries the text it completes."""
    constraint: Constraint | None = None
    """What the generated text must match from its first to its last character."""
    priority: int = 0
    """While more streams wait than can run, those with a lower number begin first."""
    logits_processors: tuple[NamedProcessor, ...] = ()
    """Change the logits of each step, in this order; what the constraint forbids stays forbidden."""
    prefill_only: bool = False
    """Compute the prompt's keys and values and sample nothing, so that later prompts that begin with it start faster.
    Ends with `prefill` and without a token, behind all other requests. Models outside lmtool's own engine refuse it."""
    generated: tuple[int, ...] = ()
    """Ids that count as generated already: the stream goes on behind them as the one that sampled them would have.
    They count for limits, penalties, stops, constraint, draws. Other engines, processors without `resume` refuse it."""
    resumable: bool = False
    """The first output tells the `seed`, which a continuation by `generated` needs; not where that is refused."""
    into: str | None = None
    """The buffer that the stream's ids are appended to at its end; the matter of an LMTP connection, not of models."""
    logprob_token_ids: tuple[int, ...] = ()
    """`top_logprobs` of each token has these ids, in place of the most likely ones; empty: the most likely ones."""
    chat: ChatOptions | None = None
    """For models that give text and no ids, see `ModelInfo.text_only`; None: all of `sampling` counts."""
    deadline: float | None = None
    """Seconds from its arrival after which the stream ends with `timeout` (by `streams.Deadlines`); None: never."""
    max_prompt_tokens: int | None = None
    """Most tokens that this prompt may have, where that is fewer than the model takes; None: as the model."""
    cache_salt: str = ""
    """What is computed of the prompt is reused only by requests of the same salt; empty: by all others without one."""
    client: str = ""
    """For whom a balancer asks: streams of one name take turns as one client; empty: those of one sink do."""
    reasoning: Reasoning | None = None
    """A thought comes as `TokenOutput.reasoning`, and the constraint begins behind it; None: it is text like any other.
    Of no effect where the model does not think in a way that is known, see `ModelInfo.reasoning`."""
    thought_marks: ThoughtMarks | None = None
    """The same in terms of ids, made of `reasoning` where the tokenizer is; `TextModel` sets it."""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Ask for the log-probability of each token of `scored`, given the prompt and the scored tokens before it."""

    stream_id: StreamId
    prompt: Prompt
    scored: tuple[int, ...] | str
    model: str | None = None
    top_logprobs: int | None = None
    """None sends no alternatives at all (LMTP's SCORE); otherwise as in `SamplingParams`."""
    text: bool = False
    deadline: float | None = None
    max_prompt_tokens: int | None = None
    """Most tokens of prompt and scored text together."""
    cache_salt: str = ""
    client: str = ""
    """This, `model`, `cache_salt`, `deadline` and `text` as of a `GenerateRequest`."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one stream consumed, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    """Generated tokens, or scored ones; those of `GenerateRequest.generated` are not among them."""
    cached_tokens: int = 0
    """Prompt tokens whose keys and values were reused instead of computed."""
    reasoning_tokens: int = 0
    """Those of `completion_tokens` that are a thought, marks included, under `GenerateRequest.reasoning`."""


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token of a model that names it by its text, having no ids."""

    piece: bytes
    """UTF-8, of part of a character at times."""
    logprob: float | None = None
    """Nats; None where the model does not tell."""
    top_logprobs: tuple[tuple[bytes, float], ...] = ()
    """Alternatives, best first."""


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A tool call begins or goes on, in the answer of a model that tells calls from text itself."""

    index: int
    """Which call of the answer, from 0 on."""
    id: str | None = None
    """In the call's first part only; so is the name."""
    name: str | None = None
    arguments: str = ""
    """More of the arguments' JSON text."""


@made_fast
@dataclass(frozen=True, slots=True)
class TokenOutput:
    """One event of one stream: a token, an ending, a failure, or a token that ends it.

    The last event of a stream has `finish_reason` or `error`; there is exactly one such event.
    """

    stream_id: StreamId
    token: int | None = None
    """Token id; None for an ending without a token (cancelled, empty `scored`, `max_tokens` 0, held-back text)."""
    logprob: float | None = None
    """Natural-log probability of `token`, in nats, at most 0; see `LogprobsMode`."""
    top_logprobs: tuple[tuple[int, float], ...] | None = None
    """(token id, logprob in nats), best first; None where none were asked for."""
    text: str | None = None
    """Whole characters this event completes, possibly empty; None unless the request asked for text."""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    """On the last event only, where the model counts."""
    error: str | None = None
    error_code: str | None = None
    """What went wrong and what to do next, which ends the stream; and its machine-readable kind, `LmtoolError.code`."""
    warnings: tuple[str, ...] = ()
    """On the last event: what of the request's constraint was not held, or more narrowly than it says."""
    stopped_by: str | int | None = None
    """On the last event: the stop string, or the stop id that is no eos id, that ended the text, where it is known."""
    named_tokens: tuple[NamedToken, ...] = ()
    """The tokens of `text`, from a model without ids that was asked for logprobs and has them."""
    tool_calls: tuple[ToolCallPart, ...] = ()
    """What this event adds to calls, from a model that tells calls from text itself."""
    seed: int | None = None
    """On the first event of a stream with `GenerateRequest.resumable`: its own seed, or the one that was drawn."""
    error_hints: tuple[str, ...] = field(default=(), compare=False)
    retryable: bool | None = field(default=None, compare=False)
    retry_after: int = field(default=0, compare=False)
    """`LmtoolError`'s `hints` (where known), `retryable` (None: what its code says) and `retry_after` (seconds)."""
    attempts: str = ""
    """On the last event of a pool's stream: every member called for it, as `main timeout 1200ms, backup ok 86ms`."""
    seam: Seam | None = None
    """On the first event behind a seam, of a pool's stream."""
    reasoning: str | None = None
    """What this event adds to the thought, possibly nothing, where its token is part of one; None: of the answer."""
    signature: ThoughtSignature | None = None
    """Of the thought since the last one, in a pool's stream whose member signs its thoughts."""

    @property
    def last(self) -> bool:
        """True if the stream ends here."""
        return self.finish_reason is not None or self.error is not None


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """Which tokenizer belongs to a model, so that a client can tell whether it has the same one."""

    name: str
    """A hub name, or the last part of a local folder."""
    sha256: str
    """Hash of the tokenizer.json, in hex."""


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """How a model writes tool calls, as far as its tokenizer and chat template tell."""

    name: str = "none"
    """By vLLM's names (`hermes`, `llama3_json`, `qwen3_coder`); `none`: in no way that is known here."""
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    """Marks around calls that are special tokens, which do not show as text, with their ids."""
    templated: bool = True
    """True if the chat template shows tools to the model."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model is and how it runs."""

    model: str
    """The served name."""
    constructor: str
    """The expression that loads it, for people to read."""
    backend: str
    """What loaded it: `transformers`, `lmtool`, `random`, or the name a remote server gives."""
    vocab_size: int | None = None
    """Size of the logits: ids from 0 to this, exclusive. None where a remote server does not tell."""
    context_length: int | None = None
    """Most tokens of prompt and output together."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    architecture: str | None = None
    parameters: int | None = None
    """The transformers class, such as `LlamaForCausalLM`, and the number of its weights."""
    dtype: str | None = None
    device: str | None = None
    """Such as `bfloat16` and `cuda:0`."""
    tokenizer: TokenizerInfo | None = None
    """None where the server has no tokenizer: it takes and gives token ids only."""
    chat_template: bool = False
    """True if `messages` can be sent."""
    tool_calls: ToolCallFormat | None = None
    """None where the tokenizer is not known."""
    reasoning: ReasoningFormat | None = None
    """None where it does not think before it answers, or not in a way that is known."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library name to version."""
    running: int | None = None
    waiting: int | None = None
    """Streams being computed now, and not yet started."""
    kernels: str | None = None
    """What multiplies the weights on a CPU (`C kernels (AVX512-BF16)`), or computes attention on a GPU (`Triton`)."""
    max_top_logprobs: int | None = None
    """Most alternatives that a token carries; None where it is not known."""
    fingerprint: str | None = None
    """Hash of everything that decides a stream's ids and logprobs (`lmtool.core.fingerprint`); None if unknown."""
    batch_invariant: bool | None = None
    """True if a stream's ids and logprobs are the same, bit for bit, in any batch; None where it is not known."""
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    """The author's `SamplingParams`, for HTTP requests that leave them out (`lmtool.core.sampling_defaults`)."""
    text_only: bool = False
    """True if it takes conversations and gives text without ids, telling tool calls from text: a pool of providers."""
    key_limits: Mapping[str, int] = field(default_factory=dict)
    """Limits of the key that asks, see `lmtool.net.access.keys.Limits`; `priority`: the lowest."""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a model is on its way into memory."""

    model: str
    phase: Literal["waiting", "unloading", "loading", "ready", "failed"]
    """`unloading`: it waits for the memory of another model, which is being unloaded."""
    done_bytes: int = 0
    total_bytes: int = 0
    """0 where the size is not known yet."""
    message: str = ""
    """A sentence for people; the reason when `phase` is `failed`."""
