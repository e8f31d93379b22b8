"""Models behind the HTTP routes, and a cache of prompt logprobs."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from lmtool.core.interfaces import current_limits, tokenizer_of
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.http import read_request
from lmtool.protocol.http.tools.formats import TOOL_CALL_PARSERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request

    from lmtool.core.interfaces import Tokenizer, TokenModel
    from lmtool.core.types import ModelInfo, TokenOutput
    from lmtool.protocol.http.tools.parsers import ToolCallParser


MAX_PROMPTS = 64
MAX_ENTRIES = 500_000
"""Most alternatives of all prompt tokens, the tokens themselves included: about 50 MB."""


PromptKey: TypeAlias = tuple[str, str, int]
"""Model name, cache salt, and alternatives per token. Only requests with the same key share entries."""


class ScoredPrompts:
    """Least recently used cache of prompt logprobs.

    A token's logprob depends only on the tokens before it, so entries never become stale.
    """

    def __init__(self, max_prompts: int = MAX_PROMPTS, max_entries: int = MAX_ENTRIES) -> None:
        self._kept: OrderedDict[tuple[PromptKey, tuple[int, ...]], tuple[TokenOutput, ...]] = OrderedDict()
        self._max_prompts = max_prompts
        self._max_entries = max_entries
        self._entries = 0

    def put(self, key: PromptKey, ids: tuple[int, ...], outputs: Sequence[TokenOutput]) -> None:
        """Store the outputs for all tokens of a prompt, the first included."""
        prompt = (key, ids)
        if prompt in self._kept:
            self._kept.move_to_end(prompt)
            return
        self._kept[prompt] = tuple(outputs)
        self._entries += self._size(prompt)
        while self._kept and (len(self._kept) > self._max_prompts or self._entries > self._max_entries):
            oldest, _ = self._kept.popitem(last=False)
            self._entries -= self._size(oldest)

    def beginning(self, key: PromptKey, ids: tuple[int, ...]) -> list[TokenOutput]:
        """Outputs for the longest known beginning of a prompt."""
        best: tuple[int, tuple[PromptKey, tuple[int, ...]] | None] = (0, None)
        for prompt in self._kept:
            if prompt[0] == key and prompt[1][:1] == ids[:1]:
                best = max(best, (_shared(prompt[1], ids), prompt), key=lambda pair: pair[0])
        shared, longest = best
        if longest is None:
            return []
        self._kept.move_to_end(longest)
        return list(self._kept[longest][:shared])

    @staticmethod
    def _size(prompt: tuple[PromptKey, tuple[int, ...]]) -> int:
        (_, _, top_logprobs), ids = prompt
        return len(ids) * (top_logprobs + 1)


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Length of the common prefix of two sequences."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # slices compare faster than items one by one
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


T = TypeVar("T")

OnStreamEnd: TypeAlias = "Callable[[TokenOutput | None, int], None]"
"""Called when a stream ends: last output (None if the client disconnected), and number of tokens."""


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """Options of the HTTP APIs."""

    tool_call_parser: str | None = None
    """Name of the tool-call format; None: derived from each chat template."""
    on_stream_end: OnStreamEnd = lambda _last, _tokens: None
    max_logprobs: int | None = None
    """Most alternatives per token; None: `MAX_LOGPROBS`."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model with its tokenizer and information."""

    model: TokenModel
    info: ModelInfo
    tokenizer: Tokenizer | None
    """None if the model runs elsewhere."""
    config: ApiConfig = field(default_factory=ApiConfig)
    scored: ScoredPrompts = field(default_factory=ScoredPrompts)
    """Cache of prompt logprobs."""

    def need_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises `ApiError` if there is none."""
        if self.tokenizer is None:
            raise ApiError(400, "this model has no tokenizer here: it takes and gives token ids only", param="model")
        return self.tokenizer

    @property
    def tool_call_parser(self) -> ToolCallParser:
        """Parser for the model's tool-call format."""
        taught = "none" if self.info.tool_calls is None else self.info.tool_calls.name
        return TOOL_CALL_PARSERS.get(self.config.tool_call_parser or taught, TOOL_CALL_PARSERS["none"])

    @property
    def ignores_tools(self) -> bool:
        """True if the model's chat template ignores tools."""
        return self.info.tool_calls is not None and not self.info.tool_calls.templated


class Models:
    """Reads requests for all APIs, and finds the model that a request names."""

    def __init__(self, model: TokenModel, config: ApiConfig) -> None:
        self._model = model
        self._config = config
        self._scored = ScoredPrompts()

    async def served(self, name: str | None) -> Served:
        """The model with this name; waits while it loads. Raises `UnknownModelError`."""
        info = await self._model.info(name)
        return Served(self._model, info, tokenizer_of(self._model, name), self._config, self._scored)

    async def read(self, request: Request, read: Callable[..., T], **options: Any) -> T:  # noqa: ANN401  # of `read`
        """Result of `read` for a request, called with these options; see `read_request`. Raises `ApiError`."""
        return await read_request(request, partial(read, **options), current_limits(self._model))
