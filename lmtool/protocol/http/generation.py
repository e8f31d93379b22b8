"""Streams of one request: tokenize its prompts, submit them to the model, and collect the outputs of each answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from lmtool.core.logits_processors import ALLOWED_TOKEN_IDS, BAD_WORDS
from lmtool.core.streams import Inbox, stream, within
from lmtool.core.types import ChatPrompt, GenerateRequest, NamedProcessor, ScoreRequest, TokenOutput, Usage
from lmtool.net.access.caller import salted
from lmtool.protocol.http import errors
from lmtool.protocol.http.answers import Answer
from lmtool.protocol.http.decoding import refuse
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.tools.feed import NamedToolReader, Plain, Reader
from lmtool.protocol.http.tools.formats import call_list_reader
from lmtool.protocol.http.tools.parsers import forced_calls, strict_calls, tools_or_schema

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from lmtool.core.interfaces import Tokenizer
    from lmtool.core.types import Constraint, Prompt
    from lmtool.protocol.http.models import Models, Served
    from lmtool.protocol.http.requests import Call
    from lmtool.protocol.http.tools.feed import Delta
    from lmtool.protocol.http.tools.parsers import ToolCallParser


_MARGIN = 64
"""Tokens after a cut in a text that may differ from those of the whole text."""


async def prompt_tokens(prompt: Prompt, call: Call, served: Served) -> tuple[int, ...]:
    """Token ids of one prompt, truncated as requested. Raises `ApiError` for a text without a tokenizer."""
    most, context = call.truncate, served.info.context_length
    if most == -1:
        answer = call.sampling.max_tokens
        most = None if context is None else max(1, context - (answer if answer < context else 1))
    if isinstance(prompt, tuple):
        ids = prompt
    elif isinstance(prompt, str) and most is not None:
        return await _ending(prompt, most, served.need_tokenizer(), special=call.add_special_tokens)
    else:
        ids = tuple(await served.need_tokenizer().tokenize(prompt, special=call.add_special_tokens))
    return ids if most is None else ids[-most:]


async def _ending(text: str, most: int, tokenizer: Tokenizer, *, special: bool) -> tuple[int, ...]:
    """Special tokens for the start, and the last token ids of a text; `most` ids in total.

    Only the end of a long text is tokenized: enough for the ids that are kept, and a margin before them.
    """
    first = tuple(await tokenizer.tokenize("", special=special))[:most]
    size = 2 * (most + _MARGIN)
    while True:
        ids = await tokenizer.tokenize(text[-size:], special=False)
        if size >= len(text) or len(ids) >= most + _MARGIN:
            break
        size *= 2
    if size >= len(text) and len(first) + len(ids) <= most:
        return tuple(await tokenizer.tokenize(text, special=special))
    kept = most - len(first)
    return (*first, *(ids[-kept:] if kept else ()))


def token_filters(call: Call, served: Served) -> tuple[NamedProcessor, ...]:
    """Logits processors for `bad_words` and `allowed_token_ids`. Raises `ApiError`."""
    filters: tuple[NamedProcessor, ...] = ()
    if call.allowed_token_ids:
        size = served.info.vocab_size
        if size is not None and max(call.allowed_token_ids) >= size:
            refuse("allowed_token_ids", f"allowed_token_ids must be ids from 0 to {size - 1}")
        filters += (NamedProcessor(ALLOWED_TOKEN_IDS, {"ids": list(call.allowed_token_ids)}),)
    if call.bad_words:
        tokenizer = served.need_tokenizer()
        sequences = {tuple(ids) for word in call.bad_words for ids in _spellings(word, tokenizer)}
        filters += (NamedProcessor(BAD_WORDS, {"sequences": sorted(map(list, sequences))}),)
    return filters


def _spellings(word: str, tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of a word directly after other text, and after a space."""
    plain = word.lstrip(" ") or word
    spelled = [tokenizer.encode_continuation(word) for word in (plain, f" {plain}")]
    return [ids for ids in spelled if ids]


_log = logging.getLogger(__name__)
TOOLS_NOT_SHOWN = "the model's chat template says nothing of tools, so the model was not told of them"


class Generation:
    """Streams of one request. Call `start` once, then iterate over `steps` or call `finish`."""

    def __init__(self, served: Served, call: Call, arrived: float | None = None) -> None:
        """arrived: arrival time of the request on the event loop's clock, from which its deadline counts; None: now."""
        self.call = call = call.with_defaults(served.info.sampling_defaults)
        self._arrived = asyncio.get_running_loop().time() if arrived is None else arrived
        self.served = served
        self.answers = [self._answer(index) for index in range(len(call.prompts) * call.width)]
        self.constraint = self._answer_constraint()
        self.reasoning = call.reasoning(served.info)
        self._running: set[int] = set()
        self._processors = call.logits_processors
        self.prompts: tuple[Prompt, ...] = call.prompts
        """Prompts for the model: token ids if their number must be known in advance."""

    async def start(self, *, count: bool = False) -> None:
        """Check the request against the model, and tokenize its prompts if needed. count: whether to always tokenize.

        Raises `ApiError`, or `RequestError` if the chat template rejects the messages.
        """
        call, served = self.call, self.served
        if served.info.text_only and (name := call.without_ids()) is not None:
            raise ApiError(400, f"this model gives text and no token ids, so it cannot have {name}", param=name)
        needs_ids = call.logprobs is not None and not served.info.text_only
        if needs_ids or call.echo or call.prompt_logprobs is not None:
            served.need_tokenizer()
        self._processors = (*call.logits_processors, *token_filters(call, served))
        if not (call.needs_prompt_ids or (served.tokenizer is not None and (count or len(call.prompts) > 1))):
            return
        prompts: list[Prompt] = []
        for prompt in call.prompts:
            if prompts:
                await asyncio.sleep(0)  # 128 prompts in a row would block the event loop
            prompts.append(await prompt_tokens(prompt, call, served))
        self.prompts = tuple(prompts)
        if self.reasoning is not None and isinstance(call.prompts[0], ChatPrompt):
            self.reasoning = replace(self.reasoning, prefill=call.prompts[0].prefill)

    @property
    def echoed(self) -> tuple[Prompt, ...]:
        """The prompts in the form that `echo` repeats."""
        return self.call.prompts if self.call.truncate is None else self.prompts

    @property
    def prompt_ids(self) -> list[list[int]] | None:
        """Token ids of each prompt, if requested."""
        return (
            [list(prompt) for prompt in self.prompts if isinstance(prompt, tuple)]
            if self.call.return_token_ids
            else None
        )

    def _answer_constraint(self) -> Constraint | None:
        """Constraint on the answers: that of the request, of its tools, or both. Raises `ApiError`."""
        tools, form, parser = self.call.tools, self.call.constraint, self.served.tool_call_parser
        if self.served.info.text_only:  # it receives the tools themselves
            return None if tools is not None and tools.forced else form
        if tools is None:
            return form
        if tools.forced:
            own = forced_calls(tools, parser, self._special_marks) if self._form_is_known else None
            return form if own is None else own
        if form is not None:
            return tools_or_schema(form, tools, parser, self._special_marks)
        # Optional calls of strict tools follow their schemas if a mark separates calls from text.
        return strict_calls(tools, parser, self._special_marks) if self._form_is_known else None

    @property
    def _form_is_known(self) -> bool:
        """True if the model's tool-call format and its special tokens are known."""
        return self.served.info.tool_calls is not None

    @property
    def _special_marks(self) -> Mapping[str, int]:
        """Marks of the tool-call format that are special tokens, with their ids."""
        calls = self.served.info.tool_calls
        ids = {} if calls is None else calls.special_tokens
        return {mark: ids[mark] for mark in self.served.tool_call_parser.marks if mark in ids}

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of all prompts that have been tokenized."""
        return sum(len(prompt) for prompt in self.prompts if isinstance(prompt, tuple))

    def _answer(self, index: int) -> Answer:
        form = self.served.tool_call_parser
        answer = Answer(index, self.call.logprobs, self._reader(form), id_length=form.id_length)
        answer.include_stop = self.call.include_stop
        answer.shows_reasoning = self.call.thoughts is None or self.call.thoughts.visible
        if self.call.tools is not None and not self.call.tools.parallel:
            answer.max_calls = 1
        if self.call.tools is not None and not self._is_list and not self.served.info.text_only:
            answer.marks = {number: mark for mark, number in self._special_marks.items()}
        return answer

    def _reader(self, form: ToolCallParser) -> Reader:
        tools = self.call.tools
        if tools is None or self.served.info.text_only:
            return Plain()
        if not self._is_list:
            return form.reader(tools.tools)
        return NamedToolReader(tools.tools[0].name) if tools.mode == "named" else call_list_reader()

    @property
    def _is_list(self) -> bool:
        """True if forced calls are written as JSON in place of the model's own format."""
        tools, form = self.call.tools, self.served.tool_call_parser
        own = form.holds_forced and form.grammar is not None and self._form_is_known
        return tools is not None and tools.forced and not own

    async def steps(self) -> AsyncGenerator[list[TokenOutput], None]:
        """Outputs of all answers, one list per step of the model; pass each output to `add`.

        All streams share one sink, so a step wakes the request once. Raises `ApiError` if a stream fails, which ends
        the others.
        """
        inbox, self._running = Inbox(elapsed=self._elapsed), set(range(len(self.answers)))
        try:
            for index in range(len(self.answers)):
                inbox.submit(self.served.model, self._request(index))
            while self._running:
                outputs = await inbox.take()
                failed = next((at for at, output in enumerate(outputs) if output.error is not None), None)
                if failed is None:
                    yield outputs
                    continue
                if failed:
                    yield outputs[:failed]
                self._end_stream(self.answers[cast("int", outputs[failed].stream_id)], outputs[failed])
                problem = outputs[failed]
                raise errors.api_error(problem.error or "", problem.error_code, problem.retry_after)
        finally:
            inbox.cancel()
            for index in self._running.copy():
                self._end_stream(self.answers[index], None)

    def add(self, output: TokenOutput) -> tuple[Answer, list[Delta]]:
        """Add an output to its answer; return the answer and its deltas."""
        answer = self.answers[cast("int", output.stream_id)]
        deltas = answer.add(output)
        if output.finish_reason is not None:
            if self.call.tools is not None and self.served.ignores_tools:
                answer.warnings += (TOOLS_NOT_SHOWN,)
            answer.warnings += self.call.warnings
            self._end_stream(answer, output)
        return answer, deltas

    def _end_stream(self, answer: Answer, last: TokenOutput | None) -> None:
        self._running.discard(answer.index)
        self.served.config.on_stream_end(last, len(answer.outputs))

    def _request(self, index: int) -> GenerateRequest:
        call = self.call
        sampling = call.sampling if call.sampling.seed is None else replace(call.sampling, seed=call.seed(index))
        return GenerateRequest(
            index,
            self.prompts[index // call.width],
            sampling,
            call.model,
            text=True,
            constraint=self.constraint,
            priority=call.priority,
            logits_processors=self._processors,
            chat=call.chat_options() if self.served.info.text_only else None,
            deadline=call.deadline,
            cache_salt=call.cache_salt,
            logprob_token_ids=call.logprob_token_ids,
            reasoning=self.reasoning,
        )

    @property
    def _elapsed(self) -> float:
        """Seconds since the request arrived."""
        return asyncio.get_running_loop().time() - self._arrived

    async def finish(self) -> None:
        """Run to the end; the answers are complete afterwards, reduced to the best ones for `best_of`."""
        async with contextlib.aclosing(self.steps()) as steps:
            async for outputs in steps:
                for output in outputs:
                    self.add(output)
        self.used = self.usage()
        if self.call.best_of is None:
            return
        width, best = self.call.width, []
        for first in range(0, len(self.answers), width):
            ranked = sorted(self.answers[first : first + width], key=lambda answer: -answer.mean_logprob)
            best += ranked[: self.call.n]
        for index, answer in enumerate(best):
            answer.index = index
        self.answers = best

    def usage(self) -> Usage:
        """Token counts so far; a prompt with several answers counts once."""
        used = [answer.usage for answer in self.answers if answer.usage is not None]
        firsts = [self.answers[at].usage for at in range(0, len(self.answers), self.call.width)]
        known = [usage for usage in firsts if usage is not None]
        running = [output for answer in self.answers if answer.usage is None for output in answer.outputs]
        thoughts = sum(output.reasoning is not None for output in running)
        return Usage(
            sum(usage.prompt_tokens for usage in known) if len(known) == len(firsts) else self.prompt_tokens,
            sum(usage.completion_tokens for usage in used) + len(running),
            sum(usage.cached_tokens for usage in known),
            sum(usage.reasoning_tokens for usage in used) + thoughts,
        )

    async def scored(self, prompt: Prompt, top_logprobs: int | None) -> tuple[str, list[TokenOutput]]:
        """Text of a prompt, and an output with logprobs for each of its tokens.

        top_logprobs: alternatives per token; None: no outputs. The first token has no context, so no logprob.
        """
        tokenizer = self.served.need_tokenizer()
        ids = tuple(await tokenizer.tokenize(prompt, special=self.call.add_special_tokens))
        text = prompt if isinstance(prompt, str) else await tokenizer.detokenize(ids)
        if top_logprobs is None or not ids:
            return text, []
        call, cache = self.call, self.served.scored
        key = (self.served.info.model, salted(call.cache_salt), top_logprobs)
        known = cache.beginning(key, ids) or [TokenOutput(0, ids[0])]
        if len(known) < len(ids):
            request = ScoreRequest(
                0,
                ids[: len(known)],
                ids[len(known) :],
                call.model,
                top_logprobs,
                deadline=call.deadline,
                cache_salt=call.cache_salt,
            )
            outputs = [output async for output in stream(self.served.model, request, elapsed=self._elapsed)]
            if (problem := outputs[-1]).error is not None:
                raise errors.api_error(problem.error, problem.error_code, problem.retry_after)
            known += [output for output in outputs if output.token is not None]
            cache.put(key, ids, known)
        return text, known


@lru_cache(maxsize=256)
def _log_once(warning: str) -> None:
    """Log a warning about a request once: agents do not show warnings, and repeat the request every turn."""
    _log.warning("%s", warning)


async def prepare(models: Models, call: Call, *, count: bool = False) -> Generation:
    """A started `Generation` for a request. Raises like `Generation.start` and `Models.served`.

    Raises `TimeLimitError` if the model is not loaded before the request's deadline.
    """
    arrived = asyncio.get_running_loop().time()
    for warning in call.warnings:
        _log_once(warning)
    async with within(call.deadline):
        generation = Generation(await models.served(call.model), call, arrived)
        await generation.start(count=count)
    return generation
