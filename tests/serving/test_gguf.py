"""`lmtool serve FILE.gguf`: our own engine with all that it does, by the file alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest

from lmtool.core.types import ModelInfo
from lmtool.inference.backends.registry import BackendConfig
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.serving.composition import Loader, tokenizer_reader
from lmtool.serving.config import ModelsConfig
from lmtool.serving.model_names import threads_for
from tests.inference.engine.gguf.conftest import vocabulary
from tests.inference.engine.gguf.writing import write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import StartServer

PROMPT = "What is the capital of France?"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model as a GGUF file of float32, with vocabulary and chat template."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    write(path, model, "F32", vocabulary(Path(MODEL_DIR)))
    return path


@pytest.fixture(scope="module")
def base(file: Path, start_server: StartServer) -> Iterator[str]:
    """The address of a server of that file's HTTP APIs."""
    with start_server(str(file)) as server:
        server.expect("ready in")
        yield server.url.replace("ws://", "http://")


def ask(base: str, path: str, **body: object) -> dict:
    """The answer to a POST."""
    answer = httpx2.post(f"{base}v1/{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_same_answers(base: str, embedded: str) -> None:
    """Texts, logprobs and scores of the model that the file was made of: template, tokenizer and ends are its own."""
    both = [base, embedded.replace("ws://", "http://")]
    chat = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "logprobs": True, "top_logprobs": 3}
    ours, theirs = (ask(one, "chat/completions", **chat)["choices"][0] for one in both)
    assert ours["message"]["content"] == theirs["message"]["content"]
    assert ours["finish_reason"] == theirs["finish_reason"] == "stop"
    logprobs = [[token["logprob"] for token in one["logprobs"]["content"]] for one in (ours, theirs)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
    score = {"prompt": PROMPT, "echo": True, "max_tokens": 0, "logprobs": 1}
    ours, theirs = (ask(one, "completions", **score)["choices"][0]["logprobs"] for one in both)
    assert ours["tokens"] == theirs["tokens"]
    assert ours["token_logprobs"][1:] == pytest.approx(theirs["token_logprobs"][1:], abs=1e-4)


def test_an_answer_by_a_schema(base: str) -> None:
    """Constraints hold on it."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}
    messages = [{"role": "user", "content": PROMPT}]
    answer = ask(base, "chat/completions", messages=messages, response_format=form, max_tokens=120)
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"name"}


def test_what_it_is(base: str) -> None:
    """The file's name without its ending; few weights need one thread."""
    assert [model["id"] for model in httpx2.get(f"{base}v1/models").json()["data"]] == ["tiny"]


def test_where_the_tokenizer_comes_from(file: Path, tmp_path: Path) -> None:
    """A tokenizer.json beside the file comes before the metadata; a vocabulary that is not known leaves token ids."""
    source = tmp_path / "m.gguf"
    source.symlink_to(file)
    loader = Loader(EngineConfig(threads=1), BackendConfig("random"), models=ModelsConfig(str(source)))
    named = [tokenizer_reader(loader.models, str(source), None)().info.name]
    (tmp_path / "tokenizer.json").symlink_to(MODEL_DIR / "tokenizer.json")
    named.append(tokenizer_reader(loader.models, str(source), None)().info.name)
    assert named == ["m", tmp_path.name]
    assert loader.tokenizer_of_workers(ModelInfo("m", "", "lmtool"), None) is None
    assert threads_for(str(source)) == 1
