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
"""Alternatives of all tokens of all prompts together, the tokens themselves counted too: about 50 MB."""


PromptKey: TypeAlias = tuple[str, str, int]
"""The model's name, the salt of the requests that may see what is kept, and the number of alternatives a token."""


class ScoredPrompts:
    """What a model said of the tokens of prompts; the one unused longest makes room.

    A token's logprob depends on the tokens before it and on nothing else, so what is kept stays true.
    """

    def __init__(self, max_prompts: int = MAX_PROMPTS, max_entries: int = MAX_ENTRIES) -> None:
        self._kept: OrderedDict[tuple[PromptKey, tuple[int, ...]], tuple[TokenOutput, ...]] = OrderedDict()
        self._max_prompts = max_prompts
        self._max_entries = max_entries
        self._entries = 0

    def put(self, key: PromptKey, ids: tuple[int, ...], outputs: Sequence[TokenOutput]) -> None:
        """Keep the outputs for all tokens of a prompt, the first one included."""
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
        """The outputs for as many tokens from the prompt's start as are known."""
        best: tuple[int, tuple[PromptKey, tuple[int, ...]] | None] = (0, None)
        for prompt in self._kept:
            if prompt[0] == key and prompt[1][:1] == ids[:1]:
                best = max(best, (_shared(prompt[1], ids), prompt), key=lambda one: one[0])
        shared, found = best
        if found is None:
            return []
        self._kept.move_to_end(found)
        return list(self._kept[found][:shared])

    @staticmethod
    def _size(prompt: tuple[PromptKey, tuple[int, ...]]) -> int:
        (_, _, top_logprobs), ids = prompt
        return len(ids) * (top_logprobs + 1)


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many items two sequences have in common from their start."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # slices compare faster than items one by one
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


T = TypeVar("T")

OnStreamEnd: TypeAlias = "Callable[[TokenOutput | None, int], None]"
"""Called for each stream that ended: its last output, None where the client left before, and its tokens."""


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """How a server answers over HTTP."""

    tool_call_parser: str | None = None
    """How models write calls of tools, by name; None: as their chat templates teach."""
    on_stream_end: OnStreamEnd = lambda _last, _tokens: None
    max_logprobs: int | None = None
    """Most alternatives that may be asked for beside a token; None: `MAX_LOGPROBS`."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model, and what is known of it."""

    model: TokenModel
    info: ModelInfo
    tokenizer: Tokenizer | None
    """None where it is not in this process."""
    config: ApiConfig = field(default_factory=ApiConfig)
    scored: ScoredPrompts = field(default_factory=ScoredPrompts)
    """Logprobs of prompts that were scored lately."""

    def need_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises `ApiError` where there is none."""
        if self.tokenizer is None:
            raise ApiError(400, "this model has no tokenizer here: it takes and gives token ids only", param="model")
        return self.tokenizer

    @property
    def tool_call_parser(self) -> ToolCallParser:
        """How the model writes calls when nothing forces it to."""
        taught = "none" if self.info.tool_calls is None else self.info.tool_calls.name
        return TOOL_CALL_PARSERS.get(self.config.tool_call_parser or taught, TOOL_CALL_PARSERS["none"])

    @property
    def ignores_tools(self) -> bool:
        """Whether the model's chat template does not show tools to it."""
        return self.info.tool_calls is not None and not self.info.tool_calls.templated


class Models:
    """What the routes of every API ask for: a request that was read and fits, and the model that it names."""

    def __init__(self, model: TokenModel, config: ApiConfig) -> None:
        self._model = model
        self._config = config
        self._scored = ScoredPrompts()

    async def served(self, name: str | None) -> Served:
        """The model of this name. Raises `UnknownModelError`; waits while it loads."""
        info = await self._model.info(name)
        return Served(self._model, info, tokenizer_of(self._model, name), self._config, self._scored)

    async def read(self, request: Request, read: Callable[..., T], **options: Any) -> T:  # noqa: ANN401  # of `read`
        """What `read` makes of a request, with these options, see `read_request`. Raises `ApiError`."""
        return await read_request(request, partial(read, **options), current_limits(self._model))
