"""Tokens of texts and conversations, and texts of tokens; of the embedded model in test_server."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from lmtool.core.errors import ContextOverflowError
from lmtool.core.prompt_limits import PromptLimits
from lmtool.core.types import ChatMessage, ChatPrompt
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.tokenizing import DetokenizeRequest, ToTokenize
from tests.protocol.http.saying import SayingModel, application

LIMITS = PromptLimits("m", 10, 100)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture
def client() -> TestClient:
    """Of a model whose tokens are characters."""
    return TestClient(application(SayingModel()))


def test_there_and_back(client: TestClient) -> None:
    """A text's ids are the text again; how many there may be is told."""
    told = client.post("/v1/tokenize", json={"prompt": "Hi"}).json()
    assert told == {"tokens": [72, 105], "count": 2, "max_model_len": 4096}
    assert client.post("/detokenize", json={"tokens": told["tokens"]}).json() == {"prompt": "Hi"}


def test_a_conversation(client: TestClient) -> None:
    """It goes through the chat template, with its tools and options."""
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL], "chat_template_kwargs": {"suffix": "!"}}
    tokens = client.post("/tokenize", json=body).json()["tokens"]
    text = bytes(tokens).decode()
    assert text.startswith("tools:[")
    assert text.endswith("user: xassistant:!")


@pytest.mark.parametrize("tokens", [None, "x", [1.5], [True], [-1], [600]])
def test_no_ids(client: TestClient, tokens: object) -> None:
    """Ids are whole numbers of the vocabulary."""
    answer = client.post("/detokenize", json={"tokens": tokens})
    assert answer.status_code == 400
    assert re.match(r"tokens(\[0\])? (is|must be) .*from 0", answer.json()["error"]["message"])
    assert answer.json()["error"]["param"].startswith("tokens")


def test_limits() -> None:
    """What cannot fit is refused; texts and ids a little too long are not, for whoever wants to count them."""
    ToTokenize(None, "x" * 100, special=True).check(LIMITS)
    DetokenizeRequest(tokens=[1] * 20).check(LIMITS)
    for asking in (
        ToTokenize(None, "x" * 101, special=True),
        ToTokenize(None, ChatPrompt((ChatMessage("user", "x" * 101),)), special=True),
        DetokenizeRequest(tokens=[1] * 21),
    ):
        with pytest.raises(ContextOverflowError, match=r"too long: at least (11|21) tokens > 10 maximum"):
            asking.check(LIMITS)


def test_what_else_is_sent() -> None:
    """A misspelt member is refused, whatever is tokenized."""
    for body in ({"prompt": "x", "promt": 1}, {"messages": [{"role": "user", "content": "x"}], "promt": 1}):
        with pytest.raises(ApiError, match="promt is not known here"):
            ToTokenize.read(body)
    with pytest.raises(ApiError, match="toks is not known here"):
        DetokenizeRequest.read({"tokens": [1], "toks": 1})
