"""Members behind litellm, by a stand-in of that package: the real one is larger than lmtool."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmtool.gateway.pools.litellm_backend import _ENVIRONMENT
from tests.gateway.pools.running import CHAT, KEY, MESSAGE, gateway, pool
from tests.gateway.pools.test_faults import shown
from tests.gateway.pools.wires import openai

PACKAGE = """
import os
environment = dict(os.environ)
calls = []
class Part:
    def __init__(self, value): self.value = value
    def model_dump(self): return self.value
class RateLimitError(Exception):
    status_code = 429
class ContextWindowExceededError(Exception):
    status_code = 400
def part(name, text, reason):
    choice = {"index": 0, name: {"content": text}, "finish_reason": reason}
    return Part({"id": "lite-1", "model": "m", "choices": [choice],
                 "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
async def acompletion(**given):
    calls.append(given)
    if "busy" in given["model"]: raise RateLimitError("key " + given["api_key"])
    if "short" in given["model"]: raise ContextWindowExceededError("too long")
    if not given.get("stream"): return part("message", "Hello", "stop")
    async def parts():
        if "cut" in given["model"]:
            yield part("delta", "Once upon ", None)
            raise ConnectionError("gone")
        yield part("delta", "Hel", None)
        yield part("delta", "lo", "stop")
    return parts()
"""


PACKAGE += """
def get_model_info(model):
    if "unknown" in model: raise Exception("not mapped")
    return {"supports_assistant_prefill": "able" in model}
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of litellm's name with its one function."""
    (tmp_path / "litellm.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in _ENVIRONMENT:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    sys.modules.pop("litellm", None)


def member(name: str, kind: str = "litellm", key: str = "api_key") -> str:
    return f"{{id: {name}, {kind}: {{model: {name}, {key}: {KEY}-{name}, default_params: {{topP: 0.5}}}}}}"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.usefixtures("package")
async def test_its_answers_and_failures_count_as_those_of_any_provider(stream: bool) -> None:
    """A rate limit rests, a context that is too long moves on; its own retries are off, its words are not shown."""
    async with gateway(pool(member("busy"), member("short"), member("bed", "bedrock", "access_key"))) as served:
        _, headers, reply = await served.post("/v1/default/chat", MESSAGE | {"stream": stream})
        assert shown(reply, stream=stream) == "Hello"
        assert [one.split(" ")[0] for one in headers["x-lmtool-attempts"].split(", ")] == ["busy", "short", "bed"]
        assert served.pool.members[0].health.outcome is not None
        assert KEY not in str(reply) + str(headers)
    call = sys.modules["litellm"].calls[-1]
    assert (call["model"], call["aws_access_key_id"], call["top_p"]) == ("bedrock/bed", f"{KEY}-bed", 0.5)
    assert (call["num_retries"], call["max_retries"]) == (0, 0)


@pytest.mark.usefixtures("package")
async def test_it_stays_at_home() -> None:
    """No price list from the network, no .env file, no log; and no calls of tools by litellm itself."""
    tools = [{"type": "function", "function": {"name": "weather"}}]
    async with gateway(pool(member("main"))) as served:
        assert (await served.post("/v1/chat/completions", CHAT | {"tools": tools}))[0] == 200
    litellm = sys.modules["litellm"]
    assert _ENVIRONMENT.items() <= litellm.environment.items()
    assert litellm.suppress_debug_info is True
    assert litellm.calls[-1]["_skip_mcp_handler"] is True


@pytest.mark.usefixtures("package")
async def test_it_goes_on_with_an_answer_where_the_package_says_so() -> None:
    """The text is a message with `prefix`; a model that cannot, or that the package does not know, is passed over."""
    names = ("cut", "dull", "unknown", "able")
    text = pool(*map(member, names), **{"continue": "prefill"})
    async with gateway(text) as served:
        found = await openai(served)
        assert (found.text, found.error) == ("Once upon Hello", None)
        assert found.seams == [(10, {"at": 10, "before": "cut", "after": "able"})]
        assert found.tokens == (2, 3)
    calls = sys.modules["litellm"].calls
    assert [call["model"] for call in calls] == ["cut", "able"]
    assert calls[-1]["messages"][-1] == {"role": "assistant", "content": "Once upon", "prefix": True}
