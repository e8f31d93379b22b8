"""The embedded model under a template that opens a thought: a real server, the three APIs, every kind of form."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx2

from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.serving.config import ModelsConfig, ServiceConfig
from tests.protocol.http.thinking import READERS, SCHEMA, Found, asked_to_think, body_of
from tests.serving.running import running

BUDGET = 12
GRAMMAR = 'start: "so " WORD ("," WORD)* "."\nWORD: "red" | "blue" | "green"'
LIMITS = {"responses": "max_output_tokens"}


def thinking_template(folder: Path) -> str:
    """The model's own template, which opens a thought behind the assistant's header unless it is turned off."""
    own = json.loads((MODEL_DIR / "tokenizer_config.json").read_text())["chat_template"]
    closed = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n"
    path = folder / "thinking.jinja"
    path.write_text(
        own.replace("<|im_start|>assistant\n{% endif %}", f"<|im_start|>assistant\n{closed}{{% endif %}}{{% endif %}}")
    )
    return str(path)


def request_of(path: str, form: str) -> dict[str, Any]:
    """A request for an answer of this form, with a bounded thought before it."""
    if form != "grammar":
        return body_of(path, form, thinking_token_budget=BUDGET)
    return body_of(path, "", thinking_token_budget=BUDGET, structured_outputs={"grammar": GRAMMAR})


def check(form: str, found: Found) -> None:
    """The answer is whole and of its form."""
    if form == "grammar":
        assert re.fullmatch(r"so (red|blue|green)(,(red|blue|green))*\.", found.text)
        return
    value = json.loads(found.arguments if form == "tool" and found.arguments is not None else found.text)
    if form == "regex":
        assert re.fullmatch("[a-c]{2}-[0-9]", value)
    else:
        assert value.keys() == set(SCHEMA["required"])


async def answer(http: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> tuple[Found, Any]:
    """What an answer comes to, the same whole and streamed; and the whole one."""
    whole, streamed = await asyncio.gather(
        http.post(f"/v1/{path}", json=body), http.post(f"/v1/{path}", json=body | {"stream": True})
    )
    assert (whole.status_code, streamed.status_code) == (200, 200), whole.text
    lines = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line.startswith("data: {")]
    found = READERS[path](whole.json())
    assert READERS[path]([json.loads(line) for line in lines]) == found
    return found, whole.json()


async def check_route(http: httpx2.AsyncClient, path: str, form: str) -> None:
    """A thought that ends at its budget and a held answer; the answer alone; a thought that a limit cuts."""
    body = request_of(path, form)
    found, whole = await answer(http, path, body)
    check(form, found)
    assert found.thought
    assert "think>" not in found.thought + found.text
    if path == "chat/completions":
        counted = whole["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert BUDGET <= counted < whole["usage"]["completion_tokens"]
    found, _ = await answer(http, path, body | asked_to_think(path, "off"))
    check(form, found)
    assert found.thought == ""
    found, _ = await answer(http, path, body | {LIMITS.get(path, "max_tokens"): BUDGET // 2})
    assert (found.text, found.arguments, found.reason) == ("", None, "length")


async def test_every_form_on_every_api(tmp_path: Path) -> None:
    """All at once, as they would come."""
    models = ModelsConfig(chat_template=thinking_template(tmp_path))
    async with running(ServiceConfig(models=models, engine=EngineConfig(threads=1))) as (_, where):
        url = where.replace("ws", "http", 1)
        async with httpx2.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:
            forms = [(path, form) for path in READERS for form in ("schema", "regex", "tool")]
            await asyncio.gather(*(check_route(http, path, form) for path, form in forms))
            await check_route(http, "chat/completions", "grammar")
