"""Completions and chat completions as a wire: questions as JSON bodies, and what a server takes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.measure.audit.evidence import Answer, Question
from lmtool.measure.audit.http_answers import read_answer
from lmtool.measure.audit.wire import WireFacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.measure.audit.evidence import Token
    from lmtool.measure.audit.http_transport import Transport

Route: TypeAlias = Literal["completions", "chat"]

PATHS = {"completions": "/completions", "chat": "/chat/completions"}
PROMPTS = {
    "completions": ("Once upon a time there was", "The weather today is", "red green blue red green blue red green"),
    "chat": ("Tell me a story about a fox.", "How is the weather in Rome?", "Say: red green blue red green blue red"),
}
"""The last one of each repeats itself, so that drafts looked up in the prompt are likely."""
OPENERS = {
    "completions": ("The", "I", "My friend said", "A"),
    "chat": ("Name an animal.", "Say a word.", "Tell me something.", "Hi"),
}
WIDTHS = (20, 10, 5, 3, 2, 1)
"""Numbers of alternatives, tried in this order."""
_IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True}
_NEUTRAL: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("top_p", (1,)),
    ("top_k", (0, -1)),
    ("min_p", (0,)),
    ("repetition_penalty", (1,)),
    ("repeat_penalty", (1,)),  # llama.cpp's name
)
"""Values that change nothing: without them a server may have defaults of its own."""
_SENT = (
    "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "stop"
)  # fmt: skip


class HttpWire:
    """One route of an OpenAI-compatible server. `find_out` comes first."""

    def __init__(self, transport: Transport, route: Route, model: str, prompts: Sequence[str] = ()) -> None:
        """prompts: in place of the usual ones; the last one should repeat itself."""
        self._transport = transport
        self._route = route
        self._model = model
        texts = (*prompts, *PROMPTS[route][len(prompts) :])
        self._neutral: dict[str, object] = {}
        self._extras: dict[str, object] = {}
        self._completions = True
        """True if texts can be scored by the other route."""
        self._ids_in: bool = False
        self.facts = WireFacts(route, 0, texts, OPENERS[route])

    async def find_out(self) -> str:
        """Find out what the server takes; why there is nothing to audit, empty where there is.

        A server without logprobs is audited all the same in what it has: texts, streams, counts, endings.
        """
        first = Question(self.facts.prompts[0], max_tokens=2, temperature=1.0)
        for width in WIDTHS:
            self.facts = replace(self.facts, width=width)
            answer = await self.ask(first)
            if not answer.refusal:
                break
        if answer.refusal or not any(token.logprob is not None for token in answer.only.tokens):
            return await self._without_logprobs(first, answer.refusal)
        most = max((len(token.alternatives) for token in answer.only.tokens), default=0)
        if most < self.facts.width:  # fewer than asked for: the server has a limit of its own
            self.facts = replace(self.facts, width=max(most, 1))
        await self._try_ids(first)
        await self._try_neutral(first)
        return ""

    async def _without_logprobs(self, question: Question, refusal: str) -> str:
        reason = refusal or "they are asked for, and none come"
        self.facts = replace(self.facts, width=0, no_logprobs=reason)
        answer = await self.ask(question)
        return f"{PATHS[self._route]} answers: {answer.refusal}" if answer.refusal else ""

    async def _try_ids(self, question: Question) -> None:
        """Ask for ids: all that is told is kept, and what is refused is not asked for again."""
        for names in (tuple(_IDS), tuple(_IDS)[:1], tuple(_IDS)[1:]):
            self._extras = {name: _IDS[name] for name in names}
            answer = await self.ask(question)
            tokens = answer.only.tokens
            named = bool(tokens) and all(type(token.name) is int for token in tokens)
            self.facts = replace(self.facts, names_ids=named)
            if not answer.refusal and (named or answer.only.ids is not None):
                return
        self._extras = {}

    async def _try_neutral(self, question: Question) -> None:
        for name, values in _NEUTRAL:
            for value in values:
                self._neutral[name] = value
                if not (await self.ask(question)).refusal:
                    break
                del self._neutral[name]

    async def ask(self, question: Question) -> Answer:
        """See `Wire`."""
        if question.mode is not None:
            return Answer(question, 0, refusal="over HTTP no request chooses what logprobs are of")
        if question.stop_token_id is not None:
            return Answer(question, 0, refusal="over HTTP texts stop an answer")
        if question.choice:
            return await self._constrained(question)
        reply = await self._transport.post(PATHS[self._route], self._body(question))
        return read_answer(reply, question)

    async def _constrained(self, question: Question) -> Answer:
        """The answer under the first spelling of the constraint that the server heeds."""
        reasons, texts = [], {*question.choice, *map(json.dumps, question.choice)}
        for spelling in _constraints(question.choice):
            body = {**self._body(question), **spelling}
            answer = read_answer(await self._transport.post(PATHS[self._route], body), question)
            if answer.refusal:
                reasons.append(answer.refusal)
            elif all(choice.text is not None and choice.text.strip() in texts for choice in answer.choices):
                return answer
        reason = reasons[0] if reasons else "a constraint is accepted, and the answer does not follow it"
        return Answer(question, 0, refusal=reason)

    def _body(self, question: Question) -> dict[str, object]:
        body: dict[str, object] = {"model": self._model, "max_tokens": question.max_tokens}
        body |= {"temperature": question.temperature, **self._neutral, **self._extras}
        if question.by_text:
            body.pop("return_tokens_as_token_ids", None)
        body |= self._prompt(question)
        for name in _SENT:
            if (value := getattr(question, name)) is not None:
                body[name] = value
        if question.n != 1:
            body["n"] = question.n
        if question.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if question.echo:
            body["echo"] = True
        if question.prompt_logprobs:
            body["prompt_logprobs"] = self.facts.width
        return body

    def _prompt(self, question: Question) -> dict[str, object]:
        width = self.facts.width if question.alternatives is None else question.alternatives
        prompt = question.prompt
        if self._route == "completions":
            body: dict[str, object] = {"prompt": prompt if isinstance(prompt, str) else list(prompt)}
            return body | ({"logprobs": width} if self.facts.width else {})
        body = {"messages": [{"role": "user", "content": prompt}]}
        return body | ({"logprobs": True, "top_logprobs": width} if self.facts.width else {})

    async def score(self, answer: Answer) -> Answer:
        """See `Wire`. A chat's tokens are scored as a completion's, which takes the ids of both."""
        choice, question = answer.only, answer.question
        whole: str | tuple[int, ...]
        if answer.prompt_ids is not None and choice.ids is not None:
            whole = answer.prompt_ids + choice.ids
        elif self._route == "completions" and isinstance(question.prompt, str) and choice.text is not None:
            whole = question.prompt + choice.text
        else:
            return Answer(question, 0, refusal="the server gives no token ids, without which a chat cannot be scored")
        other = self if self._route == "completions" else self._as_completions()
        scored = await other.scored_prompt(whole)
        if scored.refusal:
            return scored
        return _tail(scored, choice.tokens)

    def _as_completions(self) -> HttpWire:
        wire = HttpWire(self._transport, "completions", self._model)
        wire.facts = replace(self.facts, name="completions")
        wire._neutral, wire._extras = self._neutral, self._extras
        return wire

    async def scored_prompt(self, prompt: str | tuple[int, ...]) -> Answer:
        """The logprobs of a prompt's tokens, by `echo` or by `prompt_logprobs`, whichever the server has."""
        reasons = []
        for question in (
            Question(prompt, max_tokens=0, echo=True),
            Question(prompt, max_tokens=1, echo=True),
            Question(prompt, max_tokens=1, prompt_logprobs=True),
        ):
            answer = await self.ask(question)
            if answer.refusal:
                reasons.append(answer.refusal)
                continue
            if question.echo and len(answer.only.tokens) > question.max_tokens:
                tokens = answer.only.tokens
                kept = tokens[: len(tokens) - question.max_tokens]
                return replace(answer, prompt=kept)
            if len([one for one in answer.prompt if one is not None]) > 0:
                return answer
            reasons.append("it is accepted, and no logprobs of the prompt come")
        return Answer(question, 0, refusal=reasons[0])


def _constraints(texts: Sequence[str]) -> list[Mapping[str, object]]:
    """How servers spell that an answer is one of these texts, JSON strings of them last."""
    schema = {"name": "one", "strict": True, "schema": {"enum": list(texts)}}
    return [
        {"structured_outputs": {"choice": list(texts)}},
        {"guided_choice": list(texts)},
        {"response_format": {"type": "json_schema", "json_schema": schema}},
    ]


def _tail(scored: Answer, tokens: Sequence[Token]) -> Answer:
    """The scores of the last tokens; a refusal where these are others: the text was tokenized in another way."""
    own = scored.prompt[-len(tokens) :] if tokens else []
    known = [one for one in own if one is not None]
    if len(known) != len(tokens) or [one.name for one in known] != [one.name for one in tokens]:
        return replace(scored, refusal="the server tokenizes prompt and answer together in another way")
    first = scored.only
    return replace(scored, choices=(replace(first, tokens=tuple(known)),))
