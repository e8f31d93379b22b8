"""One request's streams: prepared, run together, told apart by answer, and ended when nobody wants them any more."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from lmtool import interfaces
from lmtool.http_api import errors
from lmtool.http_api.answers import Answer
from lmtool.http_api.errors import ApiError
from lmtool.http_api.replies import Pieces
from lmtool.http_api.scored_prompts import ScoredPrompts
from lmtool.http_api.tools.deltas import Plain, Reader
from lmtool.http_api.tools.either import either
from lmtool.http_api.tools.parsers import FORMS, Form, Listed, Named, form_of
from lmtool.types import ChatMessage, GenerateRequest, ScoreRequest, TokenOutput, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from lmtool.http_api.requests import Call
    from lmtool.http_api.tools.definitions import ToolUse
    from lmtool.http_api.tools.deltas import Delta
    from lmtool.interfaces import TokenModel
    from lmtool.types import Constraint, ModelInfo, Prompt

Counted: TypeAlias = "Callable[[TokenOutput | None, int], None]"
"""Is told of each stream that ended: its last output, None where the client left before, and its tokens."""

NO_TEMPLATE = "the model's chat template says nothing of tools, so the model was not told of them"


class Spelling(Pieces, Protocol):
    """A served model's tokenizer."""

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template."""

    def special_id(self, text: str) -> int | None:
        """The id of a special token."""

    async def encode_prompt(
        self,
        prompt: Prompt,
        tools: Sequence[Mapping[str, object]] | None = None,
        options: Mapping[str, object] | None = None,
        *,
        special: bool = True,
    ) -> list[int]:
        """Ids of a text, or of a conversation under the chat template. Raises `RequestError`."""

    async def decode_tokens(self, tokens: Sequence[int]) -> str:
        """Text of ids."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model, and what is known of it."""

    model: TokenModel
    info: ModelInfo
    spelling: Spelling | None
    """None where this process does not have its tokenizer."""
    form: Form | None = None
    """How it writes calls; None: as its chat template teaches."""
    scored: ScoredPrompts = field(default_factory=ScoredPrompts)
    """What it said of prompts lately."""
    counted: Counted = lambda _last, _tokens: None

    def spelt(self) -> Spelling:
        """The tokenizer. Raises `ApiError` where there is none."""
        if self.spelling is None:
            raise ApiError(400, "this model has no tokenizer here: it takes and gives token ids only", param="model")
        return self.spelling

    @property
    def calls_form(self) -> Form:
        """How the model writes calls when nothing forces it to."""
        template = None if self.spelling is None else self.spelling.chat_template
        return self.form or form_of(template)

    @property
    def knows_tools(self) -> bool:
        """Whether the model's chat template shows tools to it."""
        template = None if self.spelling is None else self.spelling.chat_template
        return "tools" in (template or "")


class Generation:
    """The streams of one call. `start` it once, then take `deltas`."""

    def __init__(self, served: Served, call: Call) -> None:
        self.call = call
        self.served = served
        self.answers = [self._answer(index) for index in range(len(call.prompts) * call.width)]
        self.constraint = self._held()
        self._uncounted: set[int] = set()
        self.prompts: tuple[Prompt, ...] = call.prompts
        """What is sent to the model: ids where the template had to be told more than messages."""

    async def start(self, *, count: bool = False) -> None:
        """Read what must be read before anything is sent. count: whether the prompts' tokens must be known.

        Raises `ApiError`, or `RequestError` where the chat template refuses the messages.
        """
        if self.call.logprobs is not None or self.call.echo or self.call.prompt_logprobs is not None:
            self.served.spelt()
        prompts: list[Prompt] = []
        for prompt in self.call.prompts:
            if prompts:
                await asyncio.sleep(0)  # 128 prompts that are tokenized one after the other would keep all waiting
            prompts.append(await self._prompt(prompt, count=count or len(self.call.prompts) > 1))
        self.prompts = tuple(prompts)

    async def _prompt(self, prompt: Prompt, *, count: bool) -> Prompt:
        call, spelling = self.call, self.served.spelling
        if isinstance(prompt, str):
            return tuple(await spelling.encode_prompt(prompt)) if count and spelling is not None else prompt
        messages = [one for one in prompt if isinstance(one, ChatMessage)]
        if not messages:
            return prompt
        tools = [tool.shown for tool in call.tools.tools] if call.tools is not None else None
        said_more = any(one.tool_calls or one.tool_call_id is not None or one.name is not None for one in messages)
        needed = said_more or call.template_options or call.prefill is not None
        if not needed and (spelling is None or not (tools or count)):
            return prompt  # whoever computes it knows the template, too
        spelling = self.served.spelt()
        ids = await spelling.encode_prompt(tuple(messages), tools, call.template_options)
        return (*ids, *(await spelling.encode_prompt(call.prefill, special=False) if call.prefill else ()))

    def _held(self) -> Constraint | None:
        """What the answers must match: the request's own form, or calls where it allows them. Raises `ApiError`."""
        tools, form = self.call.tools, self.call.constraint
        if tools is None or tools.forced:
            return form
        if form is None:
            return self._calls_held(tools)
        return either(form, tools, self.served.calls_form, self._special_marks)

    @property
    def _special_marks(self) -> dict[str, int]:
        """The marks around calls that are special tokens."""
        spelling = self.served.spelling
        if spelling is None:
            return {}
        ids = {mark: spelling.special_id(mark) for mark in self.served.calls_form.marks}
        return {mark: number for mark, number in ids.items() if number is not None}

    def _calls_held(self, tools: ToolUse) -> Constraint | None:
        """Calls that nothing forces are held to strict tools' schemas, where the model's form allows it.

        Not where the mark is a special token.
        """
        form, known = self.served.calls_form, self.served.spelling is not None
        if not known or form.name != "hermes":
            return None
        opening, closing = form.marks
        return None if opening in self._special_marks else tools.held(opening, closing)

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts together, as far as they are ids."""
        return sum(len(prompt) for prompt in self.prompts if not isinstance(prompt, str) and _are_ids(prompt))

    def _answer(self, index: int) -> Answer:
        form = self.served.calls_form
        answer = Answer(index, self.call.logprobs, self._reader(form), id_length=form.id_length)
        if self.call.tools is not None and not self.call.tools.parallel:
            answer.most_calls = 1
        if self.call.tools is not None and not self.call.tools.forced:
            answer.marks = {number: mark for mark, number in self._special_marks.items()}
        return answer

    def _reader(self, form: Form) -> Reader:
        tools = self.call.tools
        if tools is None:
            return Plain()
        if tools.mode == "named":
            return Named(tools.tools[0].name)
        return Listed() if tools.mode == "required" else form.reader()

    async def deltas(self) -> AsyncGenerator[tuple[Answer, TokenOutput, list[Delta]], None]:
        """What comes, output by output: of which answer, and what it adds. Raises `ApiError` when one fails."""
        async with contextlib.aclosing(self._outputs()) as outputs:
            async for index, output in outputs:
                answer = self.answers[index]
                added = answer.add(output)
                if output.finish_reason is not None and self.call.tools is not None and not self.served.knows_tools:
                    answer.warnings += (NO_TEMPLATE,)
                yield answer, output, added

    async def finish(self) -> None:
        """Take all that comes; afterwards the answers are whole, the best ones where there is a choice."""
        async with contextlib.aclosing(self.deltas()) as deltas:
            async for _ in deltas:
                pass
        self.used = self.usage()
        if self.call.best_of is not None:
            self._choose()

    def _choose(self) -> None:
        width, kept = self.call.width, []
        for first in range(0, len(self.answers), width):
            ranked = sorted(self.answers[first : first + width], key=lambda answer: -answer.mean_logprob)
            kept += ranked[: self.call.n]
        for index, answer in enumerate(kept):
            answer.index = index
        self.answers = kept

    def usage(self) -> Usage:
        """Tokens so far: each prompt once, however many answers it has."""
        used = [answer.usage for answer in self.answers if answer.usage is not None]
        firsts = [self.answers[at].usage for at in range(0, len(self.answers), self.call.width)]
        known = [usage for usage in firsts if usage is not None]
        running = sum(len(answer.outputs) for answer in self.answers if answer.usage is None)
        return Usage(
            sum(usage.prompt_tokens for usage in known) if len(known) == len(firsts) else self.prompt_tokens,
            sum(usage.completion_tokens for usage in used) + running,
            sum(usage.cached_tokens for usage in known),
        )

    async def scored(self, prompt: Prompt, wanted: int | None) -> tuple[str, list[TokenOutput]]:
        """A prompt as text, and its tokens as if they had been generated; none of these where none are wanted.

        wanted: alternatives beside each token. The first token comes behind nothing: it has no logprob.
        """
        spelling = self.served.spelt()
        ids = tuple(await spelling.encode_prompt(prompt))
        text = prompt if isinstance(prompt, str) else await spelling.decode_tokens(ids)
        if wanted is None or not ids:
            return text, []
        known = self.served.scored.beginning(self.served.info.model, wanted, ids) or [TokenOutput(0, ids[0])]
        if len(known) < len(ids):
            request = ScoreRequest(0, ids[: len(known)], ids[len(known) :], self.call.model, wanted)
            outputs = [output async for output in interfaces.stream(self.served.model, request)]
            _raise_error(outputs[-1])
            known += [output for output in outputs if output.token is not None]
            self.served.scored.put(self.served.info.model, wanted, ids, known)
        return text, known

    async def _outputs(self) -> AsyncGenerator[tuple[int, TokenOutput], None]:
        """Outputs of all answers as they come, with their index. Raises `ApiError` when one fails; ends all then."""
        queue: asyncio.Queue[tuple[int, TokenOutput]] = asyncio.Queue(256)
        running = len(self.answers)
        self._uncounted = set(range(running))
        pumps = [asyncio.create_task(self._pump(index, queue)) for index in range(running)]
        try:
            while running:
                index, output = await queue.get()
                if output.last:
                    running -= 1
                    self._count(index, output)
                _raise_error(output)
                yield index, output
        finally:
            for index in self._uncounted.copy():
                self._count(index, None)
            for one in pumps:
                one.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def _count(self, index: int, last: TokenOutput | None) -> None:
        self._uncounted.discard(index)
        tokens = len(self.answers[index].outputs) + (last is not None and last.token is not None)
        self.served.counted(last, tokens)

    async def _pump(self, index: int, queue: asyncio.Queue[tuple[int, TokenOutput]]) -> None:
        call = self.call
        request = GenerateRequest(
            index,
            self.prompts[index // call.width],
            replace(call.sampling, seed=call.seed(index)),
            call.model,
            text=True,
            constraint=self.constraint,
            priority=call.priority,
            logits_processors=call.logits_processors,
        )
        async with contextlib.aclosing(interfaces.stream(self.served.model, request)) as outputs:  # type: ignore[type-var] # an async generator is what it is
            async for output in outputs:
                await queue.put((index, output))


def form_named(name: str | None) -> Form | None:
    """The form of calls of this name. Raises `KeyError`."""
    return None if name is None else FORMS[name]


def _are_ids(prompt: Prompt) -> bool:
    return not prompt or isinstance(prompt[0], int)


def _raise_error(output: TokenOutput) -> None:
    if output.error is not None:
        raise errors.api_error(output.error, output.error_code)
