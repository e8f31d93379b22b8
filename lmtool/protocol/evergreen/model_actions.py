"""SCORE and TOKENIZE: what else a served model does."""

from __future__ import annotations

import math
import time
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from lmtool.core.streams import within
from lmtool.core.types import BufferSlice, MixedPrompt, ScoreRequest
from lmtool.protocol.evergreen.actions import ActionType, Port
from lmtool.protocol.evergreen.codec import unpack_config
from lmtool.protocol.evergreen.generate import JSON, LOGPROBS, JsonList, logprob_entry
from lmtool.protocol.evergreen.generate_options import read_options
from lmtool.protocol.evergreen.prompts import TOKENS, PromptBuilder, read_prompt
from lmtool.protocol.evergreen.status import invalid

if TYPE_CHECKING:
    from lmtool.core.types import Prompt
    from lmtool.protocol.evergreen.actions import ActionCall
    from lmtool.protocol.evergreen.model_access import ServedModels

_MIMETYPES = ("text/*", TOKENS)


def score_action(models: ServedModels) -> ActionType:
    """The logprobs of a text after a prompt."""
    inputs = (
        Port("prompt", "What comes before; nothing where it is left out.", mimetypes=_MIMETYPES),
        Port("scored", "The text or token ids to score.", ("text",), required=True, mimetypes=_MIMETYPES),
    )
    outputs = (
        Port("score", "Tokens, the sum of their logprobs in nats, and the perplexity.", mimetypes=(JSON,)),
        Port("logprobs", "The logprob of each token, and alternatives where top_logprobs asks.", mimetypes=(LOGPROBS,)),
    )
    return ActionType("SCORE", inputs, outputs, partial(_score, models), "Compute the probability of a text.")


async def _score(models: ServedModels, call: ActionCall) -> None:
    arrived, options = time.perf_counter(), read_options(map(unpack_config, call.configs))
    async with within(options.deadline):
        target = await models.target(call)
        prompt: Prompt = ()
        if "prompt" in call.inputs:
            prompt = await read_prompt(call.inputs["prompt"], PromptBuilder())
        scored = _scored(await read_prompt(call.inputs["scored"], PromptBuilder()))
    top, deadline = options.sampling.top_logprobs, options.deadline
    request = ScoreRequest("score", prompt, scored, target.name, top, deadline=deadline)
    entries = JsonList(call.outputs["logprobs"], LOGPROBS) if "logprobs" in call.outputs else None
    count, total = 0, 0.0
    async with aclosing(target.outputs(request, time.perf_counter() - arrived)) as steps:
        async for outputs in steps:
            tokens = [output for output in outputs if output.token is not None]
            count += len(tokens)
            call.record.usage, call.record.finish_reason = outputs[-1].usage, outputs[-1].finish_reason
            total += math.fsum(output.logprob or 0.0 for output in tokens)
            if entries is not None:
                await entries.add(map(logprob_entry, tokens))
    if entries is not None:
        await entries.finish()
    if "score" in call.outputs:
        perplexity = math.exp(min(-total / count, 700.0)) if count else None
        score = {"model": target.info.model, "tokens": count, "logprob": total, "perplexity": perplexity}
        await call.outputs["score"].put(msgspec.json.encode(score), JSON)


def _scored(prompt: Prompt) -> str | tuple[int, ...]:
    """What is to be scored: one text, or ids."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, MixedPrompt) and len(prompt.parts) == 1 and not isinstance(prompt.parts[0], BufferSlice):
        return prompt.parts[0]
    raise invalid("scored has turns, or texts and token ids in a row", "send one text without roles, or token ids")


def tokenize_action(models: ServedModels) -> ActionType:
    """The token ids of a prompt."""
    inputs = (Port("prompt", "Texts, or the turns of a conversation.", ("text",), required=True, mimetypes=_MIMETYPES),)
    outputs = (
        Port("tokens", "Its token ids; they may stand in a prompt.", mimetypes=(TOKENS,)),
        Port("texts", "The text that each id adds, as a JSON array.", mimetypes=(JSON,)),
    )
    return ActionType("TOKENIZE", inputs, outputs, partial(_tokenize, models), "Show a prompt as the model reads it.")


async def _tokenize(models: ServedModels, call: ActionCall) -> None:
    target = await models.target(call)
    ids = await target.tokenizer.tokenize(await read_prompt(call.inputs["prompt"], PromptBuilder()))
    if "tokens" in call.outputs:
        await call.outputs["tokens"].put(msgspec.json.encode(ids), TOKENS)
    if "texts" in call.outputs:
        texts = [target.tokenizer.piece(token).decode(errors="replace") for token in ids]
        await call.outputs["texts"].put(msgspec.json.encode(texts), JSON)
