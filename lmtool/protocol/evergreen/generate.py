"""GENERATE: an answer of a served model to a prompt that may still be on its way."""

from __future__ import annotations

import math
import time
from contextlib import aclosing
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from lmtool.core.reasoning import EFFORTS, requested_reasoning
from lmtool.core.streams import within
from lmtool.core.types import ChatPrompt, GenerateRequest
from lmtool.protocol.evergreen.actions import ActionType, Port
from lmtool.protocol.evergreen.codec import unpack_config
from lmtool.protocol.evergreen.early_start import EarlyStart
from lmtool.protocol.evergreen.generate_options import read_options
from lmtool.protocol.evergreen.node_io import TEXT
from lmtool.protocol.evergreen.prompts import ASSISTANT, TOKENS, PromptBuilder, read_prompt
from lmtool.protocol.evergreen.status import invalid, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lmtool.core.types import Prompt, TokenOutput
    from lmtool.protocol.evergreen.actions import ActionCall
    from lmtool.protocol.evergreen.generate_options import GenerateOptions
    from lmtool.protocol.evergreen.model_access import ServedModels, Target
    from lmtool.protocol.evergreen.node_io import OutputNode

JSON = "application/json"
_TEXTS = ("reasoning", "response")
"""Outputs that are texts."""
LOGPROBS = "application/vnd.lmtool.logprobs+json"
"""Mime type of a JSON array of `{"token": id, "logprob": nats, "top_logprobs": {id: nats}}`, one for each token."""

PROMPT = Port(
    "prompt", "Texts, or the turns of a conversation.", ("text",), required=True, mimetypes=("text/*", TOKENS)
)


def generate_action(models: ServedModels) -> ActionType:
    """The action."""
    outputs = (
        Port("response", "The answer as it is written.", ("text",), mimetypes=(TEXT,)),
        Port("reasoning", "What it thinks before its answer; part of that without this.", mimetypes=(TEXT,)),
        Port("usage", "Counts of tokens, and why the answer ended.", mimetypes=(JSON,)),
        Port("tokens", "The answer's exact token ids; they may stand in a later prompt.", mimetypes=(TOKENS,)),
        Port("logprobs", "The logprob of each of these tokens, and its alternatives.", mimetypes=(LOGPROBS,)),
    )
    summary = "Continue a prompt, or answer in a conversation."
    return ActionType("GENERATE", (PROMPT,), outputs, partial(_generate, models), summary, seconds=None)


async def _generate(models: ServedModels, call: ActionCall) -> None:
    arrived, options = time.perf_counter(), read_options(map(unpack_config, call.configs))
    async with within(options.deadline):
        target = await models.target(call)
    if not call.outputs.keys().isdisjoint(_TEXTS) and target.info.tokenizer is None:
        raise invalid(f"{target.info.model} has no tokenizer here, so it has no text", "ask for tokens")
    _check_thought(options, target, call)
    builder = PromptBuilder(options.template_variables)
    ahead = EarlyStart(target.model, target.name, builder, target.sink)
    try:
        async with within(options.deadline, time.perf_counter() - arrived):
            prompt, prefill = await _whole_prompt(call, target, builder, ahead)
        began = time.perf_counter()
        answer = _Answer(target, call.outputs)
        request = _request(target, prompt, prefill, options, answer)
        async with aclosing(target.outputs(request, began - arrived)) as steps:
            async for outputs in steps:
                ahead.close()
                if call.record.ttft is None:
                    call.record.ttft = time.perf_counter() - began
                call.record.usage, call.record.finish_reason = outputs[-1].usage, outputs[-1].finish_reason
                await answer.add(outputs)
        await answer.finish()
    finally:
        ahead.close()


def _check_thought(options: GenerateOptions, target: Target, call: ActionCall) -> None:
    """Raise `Abort` for options about a thought that cannot be."""
    if options.thinking_token_budget is not None and "reasoning" not in call.outputs:
        raise invalid(
            "thinking_token_budget bounds what the output reasoning gets, which is not asked for", "ask for reasoning"
        )
    form, effort = target.info.reasoning, options.reasoning_effort
    if form is not None and not form.heeds_effort and effort not in {None, *EFFORTS}:
        raise invalid(f"reasoning_effort is {quoted(str(effort))}", f"send one of {', '.join(EFFORTS)}")


async def _whole_prompt(
    call: ActionCall, target: Target, builder: PromptBuilder, ahead: EarlyStart
) -> tuple[Prompt, str]:
    """The prompt, once all of it is there, part of which may have been computed; and what of it begins the answer."""
    try:
        prompt = await read_prompt(call.inputs["prompt"], builder, ahead.grew)
    finally:
        await ahead.stop()
    prefill = prompt.prefill if isinstance(prompt, ChatPrompt) else ""
    if ahead.computed:  # as ids, so that a balancer sends it to where its beginning was sent
        return tuple(await target.tokenizer.tokenize(prompt)), prefill
    return prompt, prefill


def _request(
    target: Target, prompt: Prompt, prefill: str, options: GenerateOptions, answer: _Answer
) -> GenerateRequest:
    sampling = options.sampling
    if "logprobs" not in answer.outputs:  # ids that a constraint forces need not wait for the model's own numbers
        sampling = replace(sampling, top_logprobs=0, logprobs_mode="biased")
    budget, effort = options.thinking_token_budget, options.reasoning_effort
    asked = requested_reasoning(target.info.reasoning, options.template_variables, budget, effort)
    return GenerateRequest(
        "answer",
        prompt,
        sampling,
        target.name,
        text=not answer.outputs.keys().isdisjoint(_TEXTS),
        constraint=options.constraint,
        priority=options.priority,
        logits_processors=options.logits_processors,
        deadline=options.deadline,
        reasoning=replace(asked, prefill=prefill) if "reasoning" in answer.outputs else None,
    )


class _Answer:
    """Writes the outputs of one stream into the nodes that were asked for."""

    def __init__(self, target: Target, outputs: Mapping[str, OutputNode]) -> None:
        self.outputs = outputs
        self._written: set[str] = set()
        """Nodes of text that have any."""
        self._eos = frozenset(target.info.eos_token_ids)
        self._model = target.info.model
        self._last: TokenOutput | None = None
        self._lists = {
            name: JsonList(outputs[name], kind)
            for name, kind in (("tokens", TOKENS), ("logprobs", LOGPROBS))
            if name in outputs
        }

    async def add(self, outputs: list[TokenOutput]) -> None:
        """Write what waits together as one fragment of each node."""
        self._last = outputs[-1]
        await self._add_text("reasoning", "".join([output.reasoning or "" for output in outputs]))
        await self._add_text("response", "".join([output.text or "" for output in outputs]))
        if self._lists:
            tokens = [output for output in outputs if output.token is not None and not self._ends(output)]
            if "tokens" in self._lists:
                await self._lists["tokens"].add(output.token for output in tokens)
            if "logprobs" in self._lists:
                await self._lists["logprobs"].add(map(logprob_entry, tokens))

    async def _add_text(self, name: str, text: str) -> None:
        if text and name in self.outputs:
            self._written.add(name)
            await self.outputs[name].write(text, TEXT, ASSISTANT)

    def _ends(self, output: TokenOutput) -> bool:
        """True if a token is the end of the answer and no part of it."""
        return output.finish_reason == "stop" and output.token in self._eos

    async def finish(self) -> None:
        """Write what is known at the end, and close everything."""
        for name in _TEXTS:
            if name in self.outputs and name not in self._written:
                await self.outputs[name].put("", TEXT, ASSISTANT)
        for one in self._lists.values():
            await one.finish()
        if "usage" in self.outputs:
            await self.outputs["usage"].put(msgspec.json.encode(self._usage()), JSON)

    def _usage(self) -> dict[str, object]:
        last = self._last
        assert last is not None, "a stream has a last output"
        counts = {} if last.usage is None else asdict(last.usage)
        if not counts.get("reasoning_tokens"):
            counts.pop("reasoning_tokens", None)
        more = {"stopped_by": last.stopped_by, "warnings": last.warnings}
        given = {name: value for name, value in more.items() if value}
        return {"model": self._model, **counts, "finish_reason": last.finish_reason, **given}


def logprob_entry(output: TokenOutput) -> dict[str, object]:
    """A token in the array of `LOGPROBS`."""
    alternatives = {str(token): value for token, value in output.top_logprobs or () if math.isfinite(value)}
    return {"token": output.token, "logprob": output.logprob, "top_logprobs": alternatives}


class JsonList:
    """A leaf that is one JSON array, written as its items come."""

    def __init__(self, node: OutputNode, mimetype: str) -> None:
        self._node = node
        self._mimetype = mimetype
        self._before = "["

    async def add(self, items: Iterable[object]) -> None:
        """Append items."""
        texts = [msgspec.json.encode(item).decode() for item in items]
        if texts:
            await self._node.write(self._before + ",".join(texts), self._mimetype, ASSISTANT)
            self._before = ","

    async def finish(self) -> None:
        """End the array."""
        await self._node.write("[]" if self._before == "[" else "]", self._mimetype, ASSISTANT)
