"""Clients of HTTP APIs, unchanged, against our server on the embedded model: each from an environment of its own.

    python3.11 -m venv ENV && ENV/bin/pip install langchain-openai==1.7.3                    # LMTOOL_LANGCHAIN_PYTHON
    python3.11 -m venv ENV && ENV/bin/pip install anthropic==2.11.0                          # LMTOOL_ANTHROPIC_PYTHON
    python3.11 -m venv ENV && ENV/bin/pip install litellm==1.106.2                           # LMTOOL_LITELLM_PYTHON
    python3.11 -m venv ENV && ENV/bin/pip install torch==2.13.0 'lm_eval[api,hf]==0.4.13'    # LMTOOL_LMEVAL_PYTHON

LMQL's is the one of test_lmql.py, with `tiktoken==0.14.0`. Then `LMTOOL_..._PYTHON=ENV/bin/python pytest -m peer`.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from lmtool.tiny.path import MODEL_DIR

HERE = Path(__file__).parent
PATIENCE = 240.0
PARIS = "The capital of France is Paris."

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def asked(embedded, tmp_path_factory):
    """Run a script of this folder by the Python of a variable, against the server; return what it writes."""
    base = embedded.replace("ws://", "http://").rstrip("/")

    def ask(variable, script, *words):
        python = os.environ.get(variable)
        if python is None:
            pytest.skip(f"{variable} names no Python")
        home = tmp_path_factory.mktemp("client")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LMTOOL_", "PYTHONPATH"))}
        done = subprocess.run(
            [python, str(HERE / script), *(word.replace("BASE", base) for word in words)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            cwd=home,
            env={**kept, "HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "OPENAI_API_KEY": "none"},
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return ask


def test_langchain(asked):
    """Chats, streams, batches, structured answers by schema and by tool, tools with results, completions, responses."""
    found = asked("LMTOOL_LANGCHAIN_PYTHON", "langchain_client.py", "BASE/v1")
    assert found["invoke"] == found["stream"] == found["responses"] == found["batch"][0] == PARIS
    assert found["usage"] > 5
    for method in ("json_schema", "function_calling"):
        assert 0 <= found[method]["age"] <= 99
        assert len(found[method]["name"]) <= 6
    name, arguments = found["call"]
    assert (name, list(arguments)) == ("weather", ["days"])
    assert isinstance(arguments["days"], int)
    assert found["after"]
    assert found["completion"]


def test_anthropic(asked):
    """Messages, whole and streamed, stop sequences, tools with results, counting, its classes of errors."""
    found = asked("LMTOOL_ANTHROPIC_PYTHON", "anthropic_client.py", "BASE")
    assert found["whole"][:2] == [PARIS, "end_turn"]
    assert found["cut"][1:] == ["stop_sequence", "France"]
    assert found["streamed"] == PARIS
    assert found["call"][0] == "weather"
    assert found["call"][1]["city"] in {"Rome", "Oslo"}
    assert found["call"][2] == "tool_use"
    assert found["after"] == "text"
    assert found["counted"] > 5
    assert found["refused"] == ["NotFoundError", "BadRequestError"]


def test_litellm(asked):
    """By both of its providers: two turns, whose answers go back as litellm has them, a stream, a tool, a form; ids."""
    found = asked("LMTOOL_LITELLM_PYTHON", "litellm_client.py", "BASE")
    for provider in ("openai", "anthropic"):
        own = found[provider]
        assert own["two_turns"] == [PARIS, "The capital of Italy is Rome."]
        assert own["streamed"][0] == PARIS
        assert own["streamed"][1] > 5
        name, arguments, after = own["tools"]
        assert (name, set(arguments["city"]) <= set("RomeOslo")) == ("get_weather", True)
        assert after
        assert own["form"] in ([], [["age", "name"], "stop"])
    assert len(found["ids"]) == found["openai"]["streamed"][1]


def test_lm_evaluation_harness(asked):
    """`local-completions` gives the log-likelihoods of its own transformers backend, and the same greedy flags."""
    found = asked("LMTOOL_LMEVAL_PYTHON", "lm_eval_task.py", "BASE/v1", str(MODEL_DIR))
    assert len(found["server"]) == len(found["transformers"]) == 12
    for (ours, greedy), (theirs, flag) in zip(found["server"], found["transformers"], strict=True):
        assert abs(ours - theirs) < 1e-4
        assert greedy == flag


def test_lmql_by_the_openai_backend(asked):
    """Queries with masks, choices, stops, distributions and samples."""
    found = asked("LMTOOL_LMQL_PYTHON", "lmql_openai.py", "BASE/v1", str(MODEL_DIR))
    assert found["plain"]["variables"] == {"X": " Paris"}
    assert found["choice"]["variables"]["X"] in {"Paris", "Rome"}
    assert found["stops at"]["variables"]["X"].endswith(".")
    assert found["distribution"]["prompt"] == "The capital of France is"
    assert found["sample"]["variables"]["X"]
