"""LMTP as a wire: each question has a connection of its own, so that its frames alone show what it was answered."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.core import constraint as constraints
from lmtool.core.errors import LmtoolError, TimeLimitError
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest
from lmtool.measure.audit.evidence import Answer, Choice, Count, Question, Token
from lmtool.measure.audit.http_wire import OPENERS, PROMPTS
from lmtool.measure.audit.wire import WireFacts
from lmtool.protocol.lmtp.client import LmtpClient

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from lmtool.core.types import ModelInfo, TokenOutput
    from lmtool.measure.audit.exchange_log import ExchangeLog
    from lmtool.protocol.lmtp.endpoint import SocketEndpoint

WIDTH = 256
"""Most alternatives that are asked for."""
_PARAMETERS = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed")
_EXTENSIONS = frozenset({"min_p", "presence_penalty", "frequency_penalty", "seed"})
"""Those that LMQL's server does not know."""


class LmtpWire:
    """A server of LMTP, ours or LMQL's. `find_out` comes first."""

    def __init__(
        self, endpoint: SocketEndpoint, log: ExchangeLog, timeout: float, model: str | None, prompts: Sequence[str] = ()
    ) -> None:
        """timeout: seconds for a connection, for a description, and without a token."""
        self._endpoint = endpoint
        self._log = log
        self._timeout = timeout
        self._extended = False
        self._given = tuple(prompts)
        self.model = model
        """Its name, once it is known."""
        self.facts = WireFacts("lmtp", 0, ())

    async def find_out(self) -> str:
        """Ask what is served; why there is nothing to audit, empty where there is.

        Raises `ConnectError`, `AccessDeniedError`, `TimeLimitError`, `RequestError`.
        """
        async with LmtpClient(self._endpoint, open_timeout=self._timeout) as client:
            try:
                async with asyncio.timeout(self._timeout):
                    info = await client.info_or_none(self.model)
            except TimeoutError:
                reason = f"{self._endpoint.url} did not describe its model within {self._timeout:g} s"
                raise TimeLimitError(reason, "it may be loading: wait longer with --timeout SECONDS") from None
            self._extended = client.extended
        self.model = self.model or (None if info is None else info.model) or None
        self.facts = _facts(info, self._given, extended=self._extended)
        answer = await self.ask(Question(self.facts.prompts[0], max_tokens=2, temperature=1.0))
        if answer.refusal and self.facts.text and not self._given:  # a tokenizer of another model
            self.facts = _facts(info, (), extended=self._extended, text=False)
            answer = await self.ask(Question(self.facts.prompts[0], max_tokens=2, temperature=1.0))
        if answer.refusal:
            return f"GENERATE is answered: {answer.refusal}"
        if not any(token.logprob is not None for token in answer.only.tokens):
            self.facts = replace(self.facts, width=0)
            return "its tokens have no logprobs"
        return ""

    async def ask(self, question: Question) -> Answer:
        """See `Wire`."""
        if reason := self._unknown(question):
            return Answer(question, 0, refusal=reason)
        try:
            request = self._request(question)
        except LmtoolError as error:
            return Answer(question, 0, refusal=error.message)
        return await self._send(question, request)

    def _unknown(self, question: Question) -> str:
        """Why a question cannot be put in LMTP, or to this server; empty where it can."""
        if question.n != 1 or question.echo or question.prompt_logprobs:
            return "LMTP has a stream for each answer, and SCORE for prompts"
        if question.stream:
            return "every answer of LMTP is a stream"
        if self._extended:
            return ""
        extensions = [name for name in _EXTENSIONS if getattr(question, name) is not None]
        if question.mode or question.choice or question.stop or question.stop_token_id is not None or extensions:
            return "the server speaks LMTP as LMQL does, which has no such field"
        return ""

    def _request(self, question: Question) -> GenerateRequest | ScoreRequest:
        width = self.facts.width if question.alternatives is None else question.alternatives
        if question.scored:
            ids = tuple(one for one in question.scored if isinstance(one, int))
            return ScoreRequest(1, question.prompt, ids, self.model, width if self._extended else None)
        known = {name: value for name in _PARAMETERS if (value := getattr(question, name)) is not None}
        sampling = SamplingParams(
            max_tokens=question.max_tokens,
            temperature=question.temperature,
            top_logprobs=width,
            stop=() if question.stop is None else (question.stop,),
            stop_token_ids=() if question.stop_token_id is None else (question.stop_token_id,),
            logprobs_mode=question.mode or ("raw" if self._extended else "biased"),
            **known,
        )
        form = constraints.choice(list(question.choice)) if question.choice else None
        text = isinstance(question.prompt, str)
        return GenerateRequest(1, question.prompt, sampling, self.model, text=text, constraint=form)

    async def _send(self, question: Question, request: GenerateRequest | ScoreRequest) -> Answer:
        number = self._log.next_number()

        def on_frame(direction: Literal[">", "<"], frame: str) -> None:
            self._log.frames.frame(number, direction, frame)

        client = LmtpClient(self._endpoint, open_timeout=self._timeout, on_frame=on_frame, extended=self._extended)
        async with client:
            self._log.frames.opened(number, "lmtool")
            outputs: list[TokenOutput] = []
            try:
                async with asyncio.timeout(self._timeout) as limit:
                    async for output in stream(client, request):
                        outputs.append(output)
                        limit.reschedule(asyncio.get_running_loop().time() + self._timeout)
            except TimeoutError:
                outputs = []
        self._log.frames.ended(number, "client", 1000)
        return read_outputs(question, number, outputs)

    async def score(self, answer: Answer) -> Answer:
        """See `Wire`."""
        question = answer.question
        names = tuple(token.name for token in answer.only.tokens)
        return await self.ask(Question(question.prompt, scored=names, alternatives=question.alternatives))


def _facts(info: ModelInfo | None, given: Sequence[str], *, extended: bool, text: bool = True) -> WireFacts:
    """What a description tells. text: whether prompts may be texts where the server has a tokenizer."""
    size = None if info is None else info.vocab_size
    limit = None if info is None else info.max_top_logprobs
    width = min(one for one in (WIDTH, size, limit) if one is not None)
    text = text and extended and info is not None and info.tokenizer is not None
    if text:
        prompts: tuple[str | tuple[int, ...], ...] = (*given, *PROMPTS["completions"][len(given) :])
        openers: tuple[str | tuple[int, ...], ...] = OPENERS["completions"]
    else:
        ends = () if info is None else (*info.eos_token_ids, info.bos_token_id)
        ids = [one for one in range(5, 40) if one not in ends and (size is None or one < size)] or [0]
        prompts = (tuple(ids[:4]), tuple(ids[4:9] or ids), tuple(ids[:3]) * 4)
        openers = tuple((one,) for one in ids[:4])
    return WireFacts("lmtp", width, prompts, openers, names_ids=True, vocab_size=size, modes=extended, text=text)


def read_outputs(question: Question, number: int, outputs: Sequence[TokenOutput]) -> Answer:
    """The answer of a stream's outputs; one that ended with an error is a refusal."""
    if not outputs:
        return Answer(question, number, refusal="no answer in time")
    last = outputs[-1]
    if last.error is not None:
        return Answer(question, number, refusal=last.error)
    found = [one for one in outputs if one.token is not None]
    tokens = tuple(
        Token(one.token, one.logprob, tuple(one.top_logprobs or ())) for one in found if one.token is not None
    )
    ids = tuple(token.name for token in tokens if isinstance(token.name, int))
    texts = [one.text for one in outputs if one.text is not None]
    endings = sum(one.finish_reason is not None for one in outputs)
    choice = Choice(tokens, "".join(texts) if texts else None, last.finish_reason, endings, ids)
    usage = last.usage
    count = None if usage is None else Count(usage.prompt_tokens, usage.completion_tokens)
    return Answer(question, number, (choice,), prompt_ids=None, count=count)
