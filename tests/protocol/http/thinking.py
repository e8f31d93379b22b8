"""Servers in this process whose model writes what a script says, thoughts included, under real constraints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.testclient import TestClient

from lmtool.core.interfaces import Sink, StreamHandle
from lmtool.core.types import GenerateRequest, ModelInfo, ScoreRequest
from lmtool.inference.backends.random import RandomForward, load_random
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.guide.answer_check import JsonAnswerCheck
from lmtool.inference.guide.compiler import MatcherCompiler
from lmtool.inference.text.text_model import TextModel
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.protocol.http.models import ApiConfig
from lmtool.protocol.http.server import OpenAIServer
from tests.scripted_model import ScriptedModel

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n<tool_call> {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and not loop.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% elif enable_thinking is defined %}<think>\n{% endif %}"
)
"""As Qwen's: the thought is opened where that is asked for, closed where it is not wanted, else up to the model."""
EOS = 2


@dataclass(slots=True)
class ScriptedForward:
    """Logits that want the next token of a script, behind it the end, and anything where that is forbidden."""

    noise: RandomForward
    script: list[int] = field(default_factory=list)
    start: int = 0
    """Position of its first token."""
    weight: float = 5
    """What is added to the logit of a token that is wanted; those of the others are from a normal distribution."""

    def logits(self, batch: Any, attention: Any) -> Any:
        """See `model_runner.Forward`."""
        logits = self.noise.logits(batch, attention)
        positions = batch.positions[0, batch.logit_rows].tolist()
        for row, position in enumerate(positions):
            at = position + 1 - self.start
            logits[row, self.script[at] if 0 <= at < len(self.script) else EOS] += self.weight
        return logits


class Scripted:
    """A server whose model says what it is told to."""

    def __init__(self, template: str = TEMPLATE, folder: Path = MODEL_DIR, **config: Any) -> None:
        """folder: of the tokenizer."""
        engine = load_random(str(MODEL_DIR), EngineConfig(threads=1, **config), {}, lambda _progress: None)
        self.tokenizer = load_tokenizer(str(folder), chat_template=template)
        info = engine.info_now
        assert info.vocab_size is not None
        self.forward = ScriptedForward(RandomForward(info.vocab_size, 1, 0))
        assert engine._runner is not None
        object.__setattr__(engine._runner, "forward", self.forward)  # no setting reaches so far
        engine.set_guide_compiler(MatcherCompiler(self.tokenizer.to_json(), info.vocab_size, info.eos_token_ids))
        self.engine = engine
        self.model = TextModel(self, self.tokenizer, JsonAnswerCheck())
        self.requests: list[GenerateRequest] = []
        app = OpenAIServer(self.model, ApiConfig(), catalogue=ScriptedModel())
        self.http = TestClient(Starlette(routes=app.routes()))

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """See `TokenModel`; the script begins behind the prompt."""
        assert isinstance(request, GenerateRequest)
        self.requests.append(request)
        self.forward.start = len(request.prompt)
        return self.engine.submit(request, sink)

    async def info(self, model: str | None = None) -> ModelInfo:
        """See `TokenModel`."""
        return replace(await self.engine.info(model), tool_calls=None)

    def says(self, text: str) -> None:
        """What it wants to say from now on."""
        self.forward.script = self.tokenizer.encode_continuation(text)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer, or the events of a streamed one."""
        answer = self.http.post(f"/v1/{path}", json=body)
        assert answer.status_code == 200, answer.text
        if not body.get("stream"):
            return answer.json()
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    def refused(self, path: str, body: dict[str, Any]) -> Any:
        """The error of a request."""
        answer = self.http.post(f"/v1/{path}", json=body)
        assert answer.status_code == 400, answer.text
        return answer.json()["error"]


@contextmanager
def scripted(template: str = TEMPLATE, **config: Any) -> Iterator[Scripted]:
    """One such server, closed at the end. config: of the engine."""
    server = Scripted(template, **config)
    try:
        with server.http:
            yield server
    finally:
        server.engine.close()


@dataclass(slots=True)
class Found:
    """What an answer of any API comes to."""

    thought: str = ""
    text: str = ""
    arguments: str | None = None
    """Of its first call."""
    reason: str = ""
    """In OpenAI's words."""


def chat_answer(found: Any) -> Found:
    """Of chat completions, whole or streamed."""
    if isinstance(found, dict):
        [choice] = found["choices"]
        message = choice["message"]
        calls = message.get("tool_calls") or [{"function": {"arguments": None}}]
        text, thought = message["content"] or "", message.get("reasoning_content", "")
        return Found(thought, text, calls[0]["function"]["arguments"], choice["finish_reason"])
    answer = Found()
    for [choice] in (event["choices"] for event in found):
        delta = choice["delta"]
        answer.thought += delta.get("reasoning_content", "")
        answer.text += delta.get("content", "")
        for call in delta.get("tool_calls", ()):
            answer.arguments = (answer.arguments or "") + call["function"].get("arguments", "")
        answer.reason = choice["finish_reason"] or answer.reason
    return answer


def responses_answer(found: Any) -> Found:
    """Of the Responses API; a streamed one must add up to what its last event holds."""
    if isinstance(found, list):
        whole = responses_answer(found[-1]["response"])
        kinds = ("reasoning_text", "output_text", "function_call_arguments")
        parts = ["".join(e["delta"] for e in found if e["type"] == f"response.{kind}.delta") for kind in kinds]
        assert parts == [whole.thought, whole.text, whole.arguments or ""]
        assert [event["sequence_number"] for event in found] == list(range(len(found)))
        return whole
    answer = Found()
    for item in found["output"]:
        if item["type"] == "reasoning":
            answer.thought += "".join(part["text"] for part in item["content"])
        elif item["type"] == "message":
            answer.text += "".join(part["text"] for part in item["content"])
        else:
            answer.arguments = item["arguments"]
    calls = answer.arguments is not None
    answer.reason = "length" if found["status"] == "incomplete" else "tool_calls" if calls else "stop"
    return answer


def messages_answer(found: Any) -> Found:
    """Of Anthropic's messages, whole or streamed."""
    reasons = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
    if isinstance(found, dict):
        answer = Found(reason=reasons[found["stop_reason"]])
        for block in found["content"]:
            answer.thought += block.get("thinking", "")
            answer.text += block.get("text", "")
            if block["type"] == "tool_use":
                answer.arguments = json.dumps(block["input"], separators=(",", ":"))
            assert block["type"] != "thinking" or block["signature"]
        return answer
    answer = Found()
    for delta in (event["delta"] for event in found if event["type"] == "content_block_delta"):
        answer.thought += delta.get("thinking", "")
        answer.text += delta.get("text", "")
        if "partial_json" in delta:
            answer.arguments = (answer.arguments or "") + delta["partial_json"]
    [ending] = [event["delta"] for event in found if event["type"] == "message_delta"]
    answer.reason = reasons[ending["stop_reason"]]
    return answer


READERS: dict[str, Callable[[Any], Found]] = {
    "chat/completions": chat_answer,
    "responses": responses_answer,
    "messages": messages_answer,
}
"""By route."""

HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["one", "two"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
PATTERN = {"type": "string", "pattern": "^[a-c]{2}-[0-9]$"}


def body_of(path: str, form: str, wanted: dict[str, Any] = SCHEMA, **more: Any) -> dict[str, Any]:
    """A request for an answer of this form. wanted: the schema of `schema` and `tool`."""
    limit = {"responses": "max_output_tokens"}.get(path, "max_tokens")
    body: dict[str, Any] = {limit: 300, "temperature": 0, **more}
    body["input" if path == "responses" else "messages"] = HELLO
    schema = wanted if form == "schema" else PATTERN
    if form == "tool":
        function = {"name": "f", "parameters": wanted}
        tools: dict[str, tuple[object, object]] = {
            "chat/completions": ({"type": "function", "function": function}, "required"),
            "responses": ({"type": "function", **function}, "required"),
            "messages": ({"name": "f", "input_schema": wanted}, {"type": "tool", "name": "f"}),
        }
        tool, choice = tools[path]
        single = {} if path == "messages" else {"parallel_tool_calls": False}
        return body | single | {"tools": [tool], "tool_choice": choice}
    forms: dict[str, dict[str, Any]] = {
        "chat/completions": {
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        },
        "responses": {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}},
        "messages": {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    }
    if form == "regex" and path == "chat/completions":
        return body | {"structured_outputs": {"regex": '"[a-c]{2}-[0-9]"'}}
    return body | forms[path] if form else body


def asked_to_think(path: str, thinking: str) -> dict[str, Any]:
    """What each API has to say that a model is, or is not, to think; nothing for `absent`."""
    if thinking == "absent":
        return {}
    on = thinking != "off"
    if path == "messages":
        return {"thinking": {"type": "enabled", "budget_tokens": 200} if on else {"type": "disabled"}}
    if path == "responses":
        return {"chat_template_kwargs": {"enable_thinking": True}} if on else {"reasoning": {"effort": "none"}}
    return {"thinking": {"type": "enabled"}} if on else {"chat_template_kwargs": {"enable_thinking": False}}
