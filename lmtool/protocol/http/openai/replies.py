"""Completions of chats and texts in OpenAI's form, whole and streamed, with their logprobs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lmtool.core.logprobs.distribution import ranks_of
from lmtool.core.types import NamedToken

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lmtool.core.interfaces import Tokenizer
    from lmtool.core.types import TokenOutput, Usage
    from lmtool.protocol.http.answers import Answer
    from lmtool.protocol.http.generation import Generation
    from lmtool.protocol.http.http import Event
    from lmtool.protocol.http.tools.feed import Delta


Route: TypeAlias = Literal["chat", "text"]


@dataclass(frozen=True, slots=True)
class Reply:
    """Writes the answer to one request: whole, or as chunks of a stream."""

    route: Route
    id: str
    created: int
    """Seconds since 1970."""
    model: str
    prompt_ids: Sequence[Sequence[int]] | None = None
    """Token ids of each prompt, if requested."""
    n: int = 1
    """Answers per prompt."""
    tokens_as_ids: bool = False
    """True if logprobs show token ids in place of texts."""

    def whole(self, choices: Sequence[Answer], usage: Usage, tokenizer: Tokenizer | None) -> dict[str, Any]:
        """A whole answer. tokenizer: required for logprobs."""
        kind = "chat.completion" if self.route == "chat" else "text_completion"
        warnings = [warning for choice in choices for warning in choice.warnings]
        reply = self._head(kind) | {
            "choices": [self._choice(choice, tokenizer) for choice in choices],
            "usage": usage_object(usage),
            **({"warnings": warnings} if warnings else {}),
        }
        if self.prompt_ids is not None and self.route == "chat":
            reply["prompt_token_ids"] = self.prompt_ids[0]
        return reply

    def start(self, index: int) -> dict[str, Any]:
        """First chunk of a streamed answer: the role, and the prompt's ids if requested."""
        if self.route == "text":
            return self._chunk(index, {"text": "", **self._prompt_field(index)}, None, None)
        chunk = self._chunk(index, {"delta": {"role": "assistant", "content": ""}}, None, None)
        return chunk | ({} if self.prompt_ids is None else {"prompt_token_ids": self.prompt_ids[0]})

    def _prompt_field(self, index: int) -> dict[str, object]:
        """Prompt ids of a choice of a text completion, which may have several prompts."""
        return {} if self.prompt_ids is None else {"prompt_token_ids": self.prompt_ids[index // self.n]}

    def echo(self, index: int, text: str, logprobs: object) -> dict[str, Any]:
        """First chunk of a streamed text that repeats its prompt."""
        return self._chunk(index, {"text": text}, logprobs, None)

    def chunks(
        self, answer: Answer, deltas: Sequence[Delta], logprobs: object, token_ids: Sequence[int] = ()
    ) -> list[dict[str, Any]]:
        """Chunks for additions to a streamed answer; the last chunk has the finish reason.

        logprobs: those of the new tokens in the route's form, or None. token_ids: ids of the new tokens, if requested.
        """
        contents = [self._content(answer, delta) for delta in deltas]
        reason = answer.finish_reason
        if not contents and (logprobs or token_ids or reason or answer.new_seam):
            contents = [{"text": ""} if self.route == "text" else {"delta": {"content": ""} if not reason else {}}]
        chunks = [self._chunk(answer.index, content, None, None) for content in contents]
        if chunks:
            chunks[0] |= answer.seam_field
            choice = chunks[-1]["choices"][0]
            choice["logprobs"], choice["finish_reason"] = logprobs, reason
            if self.prompt_ids is not None:
                choice["token_ids"] = list(token_ids)
            if reason and answer.stopped_by is not None:
                choice["stop_reason"] = answer.stopped_by
            if reason and answer.warnings:
                chunks[-1]["warnings"] = list(answer.warnings)
        return chunks

    def _content(self, answer: Answer, delta: Delta) -> dict[str, Any]:
        if self.route == "text":
            return {"text": delta.text}
        if delta.reasoning:
            return {"delta": {"reasoning_content": delta.reasoning}}
        if delta.call is None:
            return {"delta": {"content": delta.text}}
        function: dict[str, object] = {"arguments": delta.arguments}
        call: dict[str, object] = {"index": delta.call, "function": function}
        if delta.name is not None:
            function["name"] = delta.name
            call |= {"id": answer.calls[delta.call].id, "type": "function"}
        return {"delta": {"tool_calls": [call]}}

    def usage(self, usage: Usage) -> dict[str, Any]:
        """Chunk with token counts, after the last chunk of text."""
        return self._head(self._kind) | {"choices": [], "usage": usage_object(usage)}

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.route == "chat" else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, index: int, content: dict[str, Any], logprobs: object, reason: str | None) -> dict[str, Any]:
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}
        return self._head(self._kind) | {"choices": [choice]}

    def _choice(self, answer: Answer, tokenizer: Tokenizer | None) -> dict[str, Any]:
        logprobs = None
        named = any(output.named_tokens for output in answer.outputs)
        if answer.logprobs is not None and self.route == "chat" and (named or tokenizer is not None):
            logprobs = answer_logprobs(answer, answer.outputs, tokenizer, as_ids=self.tokens_as_ids)
        elif answer.logprobs is not None and tokenizer is not None:
            logprobs = text_logprobs(answer.outputs, tokenizer, answer.logprobs, as_ids=self.tokens_as_ids)
        content: dict[str, Any] = {"text": answer.text}
        if self.route == "chat":
            content = {"message": _message(answer)}
        stopped: dict[str, object] = {} if answer.stopped_by is None else {"stop_reason": answer.stopped_by}
        if self.prompt_ids is not None:
            stopped["token_ids"] = answer.token_ids
        if self.route == "text":
            stopped |= self._prompt_field(answer.index)
        return {
            "index": answer.index,
            **content,
            "logprobs": logprobs,
            "finish_reason": answer.finish_reason,
            **stopped,
        }


def _message(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    return message


def usage_object(usage: Usage) -> dict[str, object]:
    """Token counts."""
    counts: dict[str, object] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if usage.reasoning_tokens:
        counts["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return counts


def answer_logprobs(
    answer: Answer, outputs: Sequence[TokenOutput], tokenizer: Tokenizer | None, *, as_ids: bool = False
) -> dict[str, Any]:
    """Logprobs of a chat answer, those of a visible thought in a separate list, as in DeepSeek's API."""
    limit = answer.logprobs or 0
    visible = [output for output in outputs if output.reasoning is None]
    logprobs = chat_logprobs(visible, tokenizer, limit, as_ids=as_ids)
    if len(visible) == len(outputs) or not answer.shows_reasoning:
        return logprobs
    thought = [output for output in outputs if output.reasoning is not None]
    return logprobs | {"reasoning_content": chat_logprobs(thought, tokenizer, limit, as_ids=as_ids)["content"]}


def chat_logprobs(
    outputs: Sequence[TokenOutput], tokenizer: Tokenizer | None, limit: int, *, as_ids: bool = False
) -> dict[str, Any]:
    """Logprobs in the form of chat completions: one entry per token, with its bytes (maybe part of a character).

    tokenizer: None if the model sends token texts itself. as_ids: whether to show ids in place of texts.
    """
    if as_ids and tokenizer is not None:
        return {"content": [_by_ids(output, tokenizer, limit) for output in outputs], "refusal": None}
    tokens = [token for output in outputs for token in _named(output, tokenizer, limit)]
    content = [
        _spelt(token.piece, token.logprob)
        | {"top_logprobs": [_spelt(piece, logprob) for piece, logprob in token.top_logprobs[:limit]]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _by_ids(output: TokenOutput, tokenizer: Tokenizer, limit: int) -> dict[str, object]:
    """Entry of a token that is shown as its id."""
    assert output.token is not None, "a model with a tokenizer gives ids"
    pairs = [(output.token, output.logprob), *(output.top_logprobs or ())[:limit]]
    own, *top = (_spelt(_bytes(token, tokenizer), logprob) | {"token": _id_name(token)} for token, logprob in pairs)
    return own | {"top_logprobs": top}


def _id_name(token: int) -> str:
    """A token's id in place of its text, in vLLM's form."""
    return f"token_id:{token}"


def _named(output: TokenOutput, tokenizer: Tokenizer | None, limit: int) -> Sequence[NamedToken]:
    """Tokens of an output with their bytes."""
    if output.token is None or tokenizer is None:
        return output.named_tokens
    best = (output.top_logprobs or ())[:limit]
    top = tuple((_bytes(token, tokenizer), logprob) for token, logprob in best)
    return (NamedToken(_bytes(output.token, tokenizer), output.logprob, top),)


def _bytes(token: int, tokenizer: Tokenizer) -> bytes:
    """Bytes that a token adds to the text, or its name if it adds none, such as `<|endoftext|>`."""
    return tokenizer.piece(token) or (tokenizer.token(token) or "").encode()


def _spelt(spelling: bytes, logprob: float | None) -> dict[str, object]:
    return {"token": spelling.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(spelling)}


def text_logprobs(
    outputs: Sequence[TokenOutput], tokenizer: Tokenizer, limit: int, offset: int = 0, *, as_ids: bool = False
) -> dict[str, Any]:
    """Logprobs in the form of completions: four lists with one entry per token. offset: characters before the first.

    as_ids: whether to show ids in place of texts; offsets still refer to the text. The first token of an echoed prompt
    has no context, so its logprob is null.
    """
    tokens: list[str] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for output in outputs:
        assert output.token is not None
        spelling = _spelling(output.token, tokenizer)
        offsets.append(offset)
        offset += len(spelling)
        tokens.append(_id_name(output.token) if as_ids else spelling)
        tops.append(_best(output, tokenizer, limit, as_ids=as_ids))
    return {
        "tokens": tokens,
        "token_logprobs": [output.logprob for output in outputs],
        "top_logprobs": tops if limit else None,
        "text_offset": offsets,
    }


def text_length(outputs: Sequence[TokenOutput], tokenizer: Tokenizer) -> int:
    """Number of characters of these tokens, as counted in `text_offset`."""
    return sum(len(_spelling(output.token, tokenizer)) for output in outputs if output.token is not None)


def _best(output: TokenOutput, tokenizer: Tokenizer, limit: int, *, as_ids: bool) -> dict[str, float] | None:
    """Logprobs of the most likely tokens and the chosen one, by text."""
    if output.logprob is None or output.token is None or not limit:
        return None
    best = dict((output.top_logprobs or ())[:limit])
    best.setdefault(output.token, output.logprob)
    by_text: dict[str, float] = {}
    for token, logprob in best.items():
        # Of two tokens with the same text, the more likely one is kept.
        by_text.setdefault(_id_name(token) if as_ids else _spelling(token, tokenizer), logprob)
    return by_text


def prompt_logprobs(outputs: Sequence[TokenOutput], tokenizer: Tokenizer, limit: int) -> list[dict[str, Any] | None]:
    """Logprobs of a prompt in vLLM's form: by token id, including the chosen token; null for the first token.

    `rank` counts from 1; equally likely tokens share a rank. It is null for a chosen token outside the requested ones.
    """
    entries: list[dict[str, Any] | None] = []
    for output in outputs:
        if output.logprob is None or output.token is None:
            entries.append(None)
            continue
        best = (output.top_logprobs or ())[:limit]
        ranks = ranks_of([logprob for _, logprob in best])
        ranked: list[tuple[int, float, int | None]] = [(*pair, rank) for pair, rank in zip(best, ranks, strict=True)]
        if output.token not in {token for token, _ in best}:
            ranked.append((output.token, output.logprob, None))
        entries.append(
            {
                str(token): {"logprob": logprob, "rank": rank, "decoded_token": _spelling(token, tokenizer)}
                for token, logprob, rank in ranked
            }
        )
    return entries


def _spelling(token: int, tokenizer: Tokenizer) -> str:
    spelling = _bytes(token, tokenizer)
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)


async def whole(generation: Generation, reply: Reply) -> dict[str, Any]:
    """Generate the answer and return it whole. Raises `ApiError`."""
    call, tokenizer = generation.call, generation.served.tokenizer
    echoes = []
    if call.echo:
        echoes = [await generation.scored(prompt, call.logprobs) for prompt in generation.echoed]
    of_prompts = []
    if call.prompt_logprobs is not None:
        for prompt in generation.prompts:
            _, scored = await generation.scored(prompt, call.prompt_logprobs)
            of_prompts.append(prompt_logprobs(scored, generation.served.need_tokenizer(), call.prompt_logprobs))
    await generation.finish()
    for at, answer in enumerate(generation.answers):
        if call.echo:
            text, scored = echoes[at // call.n]
            answer.text, answer.outputs = text + answer.text, [*scored, *answer.outputs]
    reply_object = reply.whole(generation.answers, generation.used, tokenizer)
    if of_prompts and reply.route == "chat":
        reply_object["prompt_logprobs"] = of_prompts[0]
    elif of_prompts:
        for at, choice in enumerate(reply_object["choices"]):
            choice["prompt_logprobs"] = of_prompts[at // call.n]
    return reply_object


async def events(generation: Generation, reply: Reply) -> AsyncGenerator[list[Event], None]:
    """Chunks of a streamed answer, grouped by step of the model. Raises `ApiError`."""
    call = generation.call
    logprobs = [_Logprobs(generation, reply, answer) for answer in generation.answers]
    if call.echo:
        for at, answer in enumerate(generation.answers):
            text, scored = await generation.scored(generation.echoed[at // call.n], call.logprobs)
            yield [reply.echo(answer.index, text, logprobs[at].of(scored))]
    started: set[int] = set()
    begins = reply.route == "chat" or reply.prompt_ids is not None
    async with contextlib.aclosing(generation.steps()) as steps:
        async for outputs in steps:
            chunks: list[Event] = []
            for output in outputs:
                answer, deltas = generation.add(output)
                if begins and answer.index not in started:
                    started.add(answer.index)
                    chunks.append(reply.start(answer.index))
                ids = () if reply.prompt_ids is None or output.token is None else (output.token,)
                added = reply.chunks(answer, deltas, logprobs[answer.index].of([output]), ids)
                if call.continuous_usage:
                    for chunk in added:
                        chunk["usage"] = usage_object(generation.usage())
                chunks += added
            if chunks:
                yield chunks
    if call.include_usage:
        yield [reply.usage(generation.usage())]


class _Logprobs:
    """Writes logprobs of one streamed answer, if requested."""

    def __init__(self, generation: Generation, reply: Reply, answer: Answer) -> None:
        self._wanted = generation.call.logprobs
        self._tokenizer = generation.served.tokenizer
        self._chat = reply.route == "chat"
        self._as_ids = reply.tokens_as_ids
        self._answer = answer
        self._offset = 0

    def of(self, outputs: list[TokenOutput]) -> dict[str, Any] | None:
        """Logprobs of these outputs in the route's form; None if not requested."""
        outputs = [output for output in outputs if output.token is not None or output.named_tokens]
        if self._wanted is None or not outputs:
            return None
        if self._chat:
            if not self._answer.shows_reasoning and all(output.reasoning is not None for output in outputs):
                return None
            return answer_logprobs(self._answer, outputs, self._tokenizer, as_ids=self._as_ids)
        if self._tokenizer is None:
            return None
        logprobs = text_logprobs(outputs, self._tokenizer, self._wanted, self._offset, as_ids=self._as_ids)
        self._offset += text_length(outputs, self._tokenizer)
        return logprobs
