"""GPT-OSS's channels over HTTP: thoughts, answers and calls of a model whose marks are special tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmtool.inference.text.harmony import MARKS
from lmtool.inference.tiny.path import MODEL_DIR
from tests.protocol.http.thinking import READERS, SCHEMA, Found, Scripted, body_of, scripted

TEMPLATE = (
    "{% if tools %}<|start|>developer<|message|>namespace functions {{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant"
    "{# reasoning_effort; <|channel|>analysis<|message|> #}"
)
THOUGHT = "<|channel|>analysis<|message|>Hm, so.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":"one"}<|call|>'
ROUTES = pytest.mark.parametrize("path", READERS)


def with_marks(folder: Path) -> Path:
    """The embedded model's tokenizer with these marks as special tokens, in the place of its last merges."""
    settings = json.loads((MODEL_DIR / "tokenizer.json").read_text())
    model = settings["model"]
    first = len(model["vocab"]) - len(MARKS)
    model["vocab"] = {text: number for text, number in model["vocab"].items() if number < first}
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    model["merges"] = [list(pair) for pair in pairs if "".join(pair) in model["vocab"]]
    plain = {**settings["added_tokens"][0], "special": True}
    settings["added_tokens"] += [{**plain, "id": first + at, "content": mark} for at, mark in enumerate(MARKS)]
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    (folder / "tokenizer_config.json").write_text((MODEL_DIR / "tokenizer_config.json").read_text())
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    """A server whose model writes on channels."""
    with scripted(TEMPLATE, folder=with_marks(tmp_path_factory.mktemp("tokenizer"))) as made:
        assert len(made.tokenizer.special_marks(MARKS)) == len(MARKS)
        yield made


def both(server: Scripted, path: str, body: dict[str, Any]) -> Found:
    """What an answer comes to, the same whole and streamed."""
    found = READERS[path](server.post(path, body))
    assert READERS[path](server.post(path, body | {"stream": True})) == found
    return found


@ROUTES
def test_thought_answer_and_call(server: Scripted, path: str) -> None:
    """Each apart from the others; what is said of a call on `commentary` is for the user."""
    function = {"name": "f", "parameters": SCHEMA}
    tools: dict[str, object] = {
        "chat/completions": {"type": "function", "function": function},
        "responses": {"type": "function", **function},
        "messages": {"name": "f", "input_schema": SCHEMA},
    }
    server.says(f"{THOUGHT}{FINAL}Yes.<|return|>")
    assert both(server, path, body_of(path, "")) == Found("Hm, so.", "Yes.", None, "stop")
    server.says(f"{THOUGHT}{CALL}")
    called = body_of(path, "", tools=[tools[path]])
    assert both(server, path, called) == Found("Hm, so.", "", '{"a":"one"}', "tool_calls")
    server.says(f"{THOUGHT}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}")
    assert both(server, path, called) == Found("Hm, so.", "I look.", '{"a":"one"}', "tool_calls")


@ROUTES
@pytest.mark.parametrize("form", ["schema", "tool"])
def test_a_form_begins_on_final(server: Scripted, path: str, form: str) -> None:
    """Whatever stands before it. A budget, of which the header is part, writes the thought's end."""
    preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    for before, thought in (("", ""), (THOUGHT, "Hm, so."), (THOUGHT + preamble, "Hm, so.\nI look.")):
        server.says(f"{before}{FINAL}No! No form.")
        found = both(server, path, body_of(path, form))
        value = json.loads(found.text or found.arguments or "")
        assert value["a"] in {"one", "two"}
        assert found.thought == thought
        assert (found.text == "") == (form == "tool")
    server.says("<|channel|>analysis<|message|>So, so, so, so, so, so.")
    found = both(server, path, body_of(path, form, thinking_token_budget=14))
    assert 0 < len(found.thought) < len("So, so, so, so, so, so.")
    assert json.loads(found.text or found.arguments or "")["a"] in {"one", "two"}


@ROUTES
def test_a_budget_cuts_no_call(server: Scripted, path: str) -> None:
    """It bounds the thought: what is on `commentary` is none."""
    function = {"name": "f", "parameters": SCHEMA}
    tools: dict[str, object] = {
        "chat/completions": {"type": "function", "function": function},
        "responses": {"type": "function", **function},
        "messages": {"name": "f", "input_schema": SCHEMA},
    }
    server.says(f"{THOUGHT}{CALL}")
    budget = len(server.tokenizer.encode_continuation(f"{THOUGHT}<|channel|>commentary to="))
    body = body_of(path, "", tools=[tools[path]], thinking_token_budget=budget)
    assert both(server, path, body) == Found("Hm, so.", "", '{"a":"one"}', "tool_calls")


def test_what_it_counts(server: Scripted) -> None:
    """Logprobs of the answer have none of the thought, and the mark that ends it is no thought."""
    server.says(f"{THOUGHT}{FINAL}Yes.<|return|>")
    whole = server.post("chat/completions", body_of("chat/completions", "", logprobs=True))
    [choice] = whole["choices"]
    told = choice["logprobs"]
    assert "".join(one["token"] for one in told["reasoning_content"]).startswith("<|message|>Hm, so.")
    assert "".join(one["token"] for one in told["content"]).replace("<|im_end|>", "").endswith("Yes.<|return|>")
    counted = whole["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert counted == len(told["reasoning_content"])
