"""The models behind the routes: found by the names in requests, with what is known of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from lmtool.core.interfaces import current_limits, tokenizer_of
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.http import read_request
from lmtool.protocol.http.scored_prompts import ScoredPrompts
from lmtool.protocol.http.tools.parsers import TOOL_CALL_PARSERS, ToolCallParser

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from lmtool.core.interfaces import Tokenizer, TokenModel
    from lmtool.core.types import ModelInfo, TokenOutput

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
