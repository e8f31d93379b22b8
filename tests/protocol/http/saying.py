"""A `TokenModel` that says what a test wants, a character a token, and its tokenizer, whose template has tools."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from starlette.applications import Starlette

from lmtool.core.interfaces import Sink
from lmtool.core.types import (
    ChatPrompt,
    GenerateRequest,
    MixedPrompt,
    ModelInfo,
    Prompt,
    ScoreRequest,
    TokenOutput,
    ToolCallFormat,
    Usage,
)
from lmtool.inference.text.chat_template import ChatTemplate
from lmtool.protocol.http.models import ApiConfig
from lmtool.protocol.http.server import OpenAIServer
from tests.scripted_model import ScriptedModel

MARK, MARK_ID, EOS = "<tool_call>", 500, 501
"""A special token: it does not show as text."""
TEMPLATE = (
    "{% if tools %}tools:{{ tools | tojson }} as <tool_call>\n{% endif %}{% for m in messages %}{{ m.role }}: "
    "{{ m.content }}{% for c in m.tool_calls or [] %} calls {{ c.function.name }} with "
    "{{ c.function.arguments | tojson }}{% endfor %}{% if m.tool_call_id %} for {{ m.tool_call_id }}{% endif %}\n"
    "{% endfor %}assistant:{{ suffix }}"
)


class Letters:
    """Characters are ids."""

    def __init__(self, template: str = TEMPLATE, special: Mapping[str, int] | None = None) -> None:
        self.template = template
        marks = {MARK: MARK_ID} if special is None else special
        self.tool_calls = ToolCallFormat("hermes", marks, templated="tools" in template)

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, ChatPrompt):
            prompt = ChatTemplate(self.template, {}).render(prompt) + prompt.prefill
        assert not isinstance(prompt, MixedPrompt)
        return list(prompt.encode() if isinstance(prompt, str) else prompt)

    async def tokenize(self, prompt: Prompt, *, special: bool = True) -> list[int]:
        return self.encode_prompt(prompt)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode()

    def piece(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def token(self, token_id: int) -> str:
        return MARK if token_id == MARK_ID else "<end>"


class SayingModel:
    """Answers each request with the next text, a token a turn of the event loop."""

    def __init__(
        self,
        *texts: str,
        fails_after: int | None = None,
        warnings: tuple[str, ...] = (),
        letters: Letters | None = None,
        tokenizer: bool = True,
    ) -> None:
        """tokenizer: whether the model's tokenizer, `letters`, is in this process."""
        self.letters = letters or Letters()
        self._here = tokenizer
        self.requests: list[GenerateRequest | ScoreRequest] = []
        self.cancelled = 0
        self._texts = cycle(texts)
        self._fails_after = fails_after
        self._warnings = warnings

    async def info(self, model: str | None = None) -> ModelInfo:
        told = self.letters.tool_calls if self._here else None
        return ModelInfo("sayer", "SayingModel()", "scripted", 600, 4096, (EOS,), tool_calls=told)

    def tokenizer(self, model: str | None = None) -> Any:
        return self.letters if self._here else None

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> Saying:
        self.requests.append(request)
        text = next(self._texts) if isinstance(request, GenerateRequest) else ""
        return Saying(self, request, sink, text, self._fails_after, self._warnings)


class Saying:
    """One stream."""

    def __init__(
        self,
        model: SayingModel,
        request: GenerateRequest | ScoreRequest,
        sink: Sink,
        text: str,
        fails_after: int | None,
        warnings: tuple[str, ...],
    ) -> None:
        self._model, self._request, self._sink, self._warnings = model, request, sink, warnings
        self._fails_after = fails_after
        self._left = self._outputs(text)
        asyncio.get_running_loop().call_soon(self._step)

    def _outputs(self, text: str) -> list[TokenOutput]:
        number, request = self._request.stream_id, self._request
        if isinstance(request, ScoreRequest):
            scored = [TokenOutput(number, token, -2.0, ((token, -2.0),)) for token in request.scored]  # type: ignore[arg-type]
            return [*scored, TokenOutput(number, finish_reason="stop", usage=Usage(1, len(scored)))]
        pieces = text.replace(MARK, chr(MARK_ID))
        tokens = [(ord(one), "" if ord(one) == MARK_ID else one) for one in pieces]
        limit = request.sampling.max_tokens
        outputs = [TokenOutput(number, token, -0.5, ((token, -0.5),), said) for token, said in tokens[:limit]]
        cut = len(tokens) > limit
        usage = Usage(len(self._model.letters.encode_prompt(request.prompt)), len(outputs) + (not cut), 1)
        ending = TokenOutput(
            number,
            None if cut else EOS,
            None if cut else -0.1,
            None if cut else (),
            "",
            finish_reason="length" if cut else "stop",
            usage=usage,
            warnings=self._warnings,
        )
        return [*outputs, ending]

    def _step(self) -> None:
        if self._fails_after == 0:
            self._left = [TokenOutput(self._request.stream_id, error="it broke; try again", error_code="server")]
        elif self._fails_after is not None:
            self._fails_after -= 1
        if self._left:
            self._sink([self._left.pop(0)])
            asyncio.get_running_loop().call_soon(self._step)

    def cancel(self) -> None:
        if self._left:
            self._model.cancelled += 1
            self._left = [TokenOutput(self._request.stream_id, finish_reason="cancelled")]

    def pause(self) -> None:
        """Never needed: tests read all at once."""

    def resume(self) -> None:
        """See `pause`."""


def application(model: SayingModel, config: ApiConfig | None = None) -> Starlette:
    """The routes over a model that says what it is told to."""
    return Starlette(routes=OpenAIServer(model, config, catalogue=ScriptedModel()).routes())
