"""Random dialogues of several turns with a server: the ids that are sent back are the ids that were generated.

    python -m tests.protocol.http.dialogues [NUMBER] [SEED]

runs that many against a server of its own, whose model picks any token with nearly the same probability: texts of such
tokens, tokenized again, would be other ids most of the time.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx2

from lmtool.inference.backends.registry import BackendConfig
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.serving.config import ModelsConfig, ServiceConfig
from tests.serving.running import running

TURNS = 3
AT_ONCE = 16
END = 2
"""What ends a turn, and what the template writes behind one."""
EOS = {0, END}
ASKED = ("Hi", "What is 2 + 2?", " two  blanks ", "Ünïcödé 🦉", "a\n\nb", "<|im_end|>", '{"a": [1, 2]}')
END_BIAS = {"0": 3.5, "2": 5.0}
"""Without it a random answer would hardly ever end by itself."""
CONFIG = ServiceConfig(
    models=ModelsConfig(model=str(MODEL_DIR)), backend=BackendConfig(backend="random"), engine=EngineConfig(threads=1)
)


@dataclass(slots=True)
class Dialogue:
    """One conversation, and what of it the server has told."""

    http: httpx2.AsyncClient
    draw: random.Random
    counts: Counter[str]
    history: list[dict[str, Any]] = field(default_factory=list)
    """Messages, or items, so far."""
    known: list[int] = field(default_factory=list)
    """The ids of the last prompt and of its answer: what the next prompt must begin with."""
    previous: str | None = None

    async def run(self) -> None:
        """All turns, by one route. Raises `AssertionError` where an id differs."""
        route = self.draw.choice((self.chat, self.messages, self.responses, self.stored, self.ids))
        for _ in range(TURNS):
            prompt, answer = await route(self.draw.choice(ASKED))
            assert prompt[: len(self.known)] == self.known, (route.__name__, prompt, self.known)
            doubled = self.known[-1:] == [END] == prompt[len(self.known) :][:1]
            assert not doubled or route == self.ids, (route.__name__, prompt, self.known)
            assert answer
            self.known = prompt + answer
            self.counts["tokens"] += len(answer)
            self.counts["ended by itself"] += answer[-1] in EOS
            self.counts[route.__name__] += 1

    async def chat(self, text: str) -> tuple[list[int], list[int]]:
        """Chat completions, whole or streamed; the answer goes back with its ids."""
        self.history.append({"role": "user", "content": text})
        body = {**self._common("max_completion_tokens"), "messages": self.history, "logit_bias": END_BIAS}
        if self.draw.random() < 0.5:
            found = await self._post("/v1/chat/completions", body)
            [choice] = found["choices"]
            prompt, ids = found["prompt_token_ids"], choice["token_ids"]
            message = choice["message"]
        else:
            prompt, ids, content = [], [], ""
            for event in await self._events("/v1/chat/completions", body):
                prompt += event.get("prompt_token_ids", [])
                ids += event["choices"][0].get("token_ids", [])
                content += event["choices"][0]["delta"].get("content") or ""
            message = {"role": "assistant", "content": content}
        self.history.append({**message, "token_ids": ids})
        return prompt, ids

    async def messages(self, text: str) -> tuple[list[int], list[int]]:
        """Anthropic's messages, whole or streamed."""
        self.history.append({"role": "user", "content": [{"type": "text", "text": text}]})
        body = {**self._common("max_tokens"), "messages": self.history}
        if self.draw.random() < 0.5:
            found = await self._post("/v1/messages", body)
            prompt, ids = found["prompt_token_ids"], found["token_ids"]
        else:
            events = await self._events("/v1/messages", body)
            prompt = events[0]["message"]["prompt_token_ids"]
            [ids] = [event["token_ids"] for event in events if event["type"] == "message_delta"]
        self.history.append({"role": "assistant", "content": "not read", "token_ids": ids})
        return prompt, ids

    async def responses(self, text: str) -> tuple[list[int], list[int]]:
        """Responses, whose items go back as they came."""
        self.history.append({"role": "user", "content": text})
        body = {**self._common("max_output_tokens"), "input": self.history, "logit_bias": END_BIAS, "store": False}
        found = await self._post("/v1/responses", body)
        self.history += found["output"]
        return found["prompt_token_ids"], found["token_ids"]

    async def stored(self, text: str) -> tuple[list[int], list[int]]:
        """Responses that the server goes on from."""
        body = {**self._common("max_output_tokens"), "input": text, "logit_bias": END_BIAS}
        found = await self._post("/v1/responses", {**body, "previous_response_id": self.previous})
        self.previous = found["id"]
        return found["prompt_token_ids"], found["token_ids"]

    async def ids(self, text: str) -> tuple[list[int], list[int]]:
        """Ids alone: of what was, and of what is asked now, as the prompt of any route."""
        more = await self._post("/tokenize", {"prompt": text, "add_special_tokens": False})
        body = {"prompt_token_ids": [*self.known, *more["tokens"]], "logit_bias": END_BIAS}
        found = await self._post("/v1/chat/completions", {**self._common("max_completion_tokens"), **body})
        assert found["prompt_token_ids"] == body["prompt_token_ids"]
        [choice] = found["choices"]
        return found["prompt_token_ids"], choice["token_ids"]

    def _common(self, limit: str) -> dict[str, Any]:
        return {limit: self.draw.randint(1, 12), "temperature": 1.0, "return_token_ids": True}

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        answer = await self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def _events(self, path: str, body: dict[str, Any]) -> list[Any]:
        answer = await self.http.post(path, json={**body, "stream": True})
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


async def check(number: int, seed: int = 0) -> Counter[str]:
    """Run that many dialogues, and count turns by route and tokens. Raises `AssertionError` at the first wrong id."""
    counts: Counter[str] = Counter()
    left = iter(range(number))
    async with running(CONFIG) as (_, url):
        base = url.replace("ws://", "http://").rstrip("/")
        async with httpx2.AsyncClient(base_url=base, timeout=600) as http:

            async def some() -> None:
                for at in left:
                    await Dialogue(http, random.Random(seed * 1_000_003 + at), counts).run()

            async with asyncio.TaskGroup() as group:
                for _ in range(min(AT_ONCE, number)):
                    group.create_task(some())
    return counts


if __name__ == "__main__":
    found = asyncio.run(check(*map(int, sys.argv[1:] or ["10000"])))
    sys.stdout.write(f"{dict(found)}\n")
