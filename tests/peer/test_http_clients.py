"""Clients of HTTP APIs, unchanged, against our server: each from an environment of its own.

    python -m tests.peer.clients.environments ENVS                                            # LMTOOL_SDKS=ENVS
    python3.11 -m venv ENV && ENV/bin/pip install torch==2.13.0 'lm_eval[api,hf]==0.4.13'    # LMTOOL_LMEVAL_PYTHON

LMQL's is the one of test_lmql.py, with `tiktoken==0.14.0`. Then `LMTOOL_SDKS=ENVS LMTOOL_..._PYTHON=ENV/bin/python
pytest -m peer`. What each SDK is asked is in clients/questions.py.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lmtool.inference.tiny.path import MODEL_DIR
from tests.peer.quoting_server import quoting

HERE = Path(__file__).parent
CLIENTS = HERE / "clients"
PATIENCE = 240.0
SDKS = os.environ.get("LMTOOL_SDKS")
PARIS, ROME = "The capital of France is Paris.", "The capital of Italy is Rome."
KEYS = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"}
THOUGHT = ["Hm, hm.", "Yes."]

THOUGHTS = {"turns", "stream", "forms", "tool", "tool_stream"} | {"thought", "thought_stream", "again"}
ALL = THOUGHTS | {"thought_tool"}
APIS = {
    "openai": {"chat completions": ALL, "responses": ALL},
    "anthropic": {"messages": ALL},
    "litellm": {"openai": ALL, "anthropic": ALL},
    "langchain": {"ChatOpenAI": ALL, "ChatOpenAI, responses": ALL, "ChatAnthropic": ALL},
    "instructor": {api: {"turns", "forms", "thought_tool"} for api in ("openai", "anthropic")},
    "pydantic_ai": dict.fromkeys(("chat completions", "responses", "messages"), THOUGHTS),
    "openai_agents": {"chat completions": THOUGHTS, "responses": THOUGHTS},
    "llama_index": dict.fromkeys(("OpenAILike", "OpenAIResponses", "Anthropic"), THOUGHTS),
    "openai.mjs": {"chat completions": ALL, "responses": ALL},
    "anthropic.mjs": {"messages": ALL},
}
"""What is tried of each SDK, by its APIs."""
DROPPED = {
    ("langchain", "ChatOpenAI"): {"thought", "thought_stream", "again", "thought_tool"},
    ("langchain", "ChatOpenAI, responses"): {"thought_stream"},
    ("llama_index", "OpenAILike"): {"again"},
    ("llama_index", "OpenAIResponses"): {"again"},
}
"""Thoughts that an SDK drops itself: the answer is there all the same."""
MORE = {
    "openai": {"completion": " Paris.", "models": ["lmtool-tiny", "claude-sonnet-4-5"]},
    "anthropic": {
        "cut": ["stop_sequence", "France"],
        "counted": 17,
        "refused": ["NotFoundError", "BadRequestError"],
    },
    "litellm": {"ids": 12, "responses": PARIS},
    "langchain": {"completion": " Paris."},
}
"""What a client says beside its APIs."""

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def asked(embedded, tmp_path_factory):
    """Run a script of this folder by the Python of a variable, against the server; return what it writes."""
    base = embedded.replace("ws://", "http://").rstrip("/")

    def ask(variable, script, *words):
        python = os.environ.get(variable)
        if python is None:
            pytest.skip(f"{variable} names no Python")
        return ran(
            [python, str(HERE / script), *(word.replace("BASE", base) for word in words)],
            tmp_path_factory.mktemp("client"),
        )

    return ask


@pytest.fixture(scope="module")
def servers(start_server):
    """URLs of the embedded model, by a second name too, and of a model that says what it is asked for."""
    with start_server("lmtool-tiny", "--alias", "claude-sonnet-4-5=lmtool-tiny") as process, quoting() as quoted:
        process.expect("ready in")
        yield process.url.replace("ws://", "http://").rstrip("/"), quoted


def command(client, home):
    """How the client of this name is run; home: the folder it runs in."""
    if SDKS is None:
        pytest.skip("LMTOOL_SDKS names no folder of environments")
    name, _, script = client.partition(".")
    if not script:
        return [f"{SDKS}/{name}/bin/python", str(CLIENTS / f"{name}_client.py")]
    (home / "node_modules").symlink_to(Path(SDKS, "node", "node_modules"))
    for file in CLIENTS.glob("*.mjs"):
        shutil.copy(file, home)
    return ["node", str(home / f"{name}_client.mjs")]


@pytest.mark.parametrize("client", APIS)
def test_sdk(client, servers, tmp_path):
    """Two turns, streams, tools, structured output, thoughts, sent back as the SDK has them: see clients/questions."""
    found = ran([*command(client, tmp_path), *servers], tmp_path)
    assert {api: set(parts) for api, parts in found["apis"].items()} == APIS[client]
    assert found["more"] == MORE.get(client, {})
    for api, parts in found["apis"].items():
        check(parts, DROPPED.get((client, api), set()))


def check(parts, dropped):
    """What an SDK got of an API. dropped: names of parts whose thought it does not show."""
    assert parts["turns"] == [PARIS, ROME]
    assert parts.get("stream", PARIS) == PARIS
    assert parts["forms"]
    for form in parts["forms"].values():
        assert set(form) == {"name", "size"}
        assert form["name"] in {"Rome", "Oslo"}
        assert form["size"] in {1, 2, 3}
    for name in {"tool", "tool_stream"} & set(parts):
        called, arguments, *after = parts[name]
        assert (called, arguments) == ("get_weather", {"city": "Rome"})
        assert all("sunny" in text for text in after)
    for name in {"thought", "thought_stream", "again", "thought_tool"} & set(parts):
        thought, answer = parts[name]
        assert thought == ("" if name in dropped else THOUGHT[0]), name
        assert answer in ([{"city": "Rome"}, {"city": "Oslo"}] if name == "thought_tool" else THOUGHT[1:])


def ran(words, home):
    """The JSON that a script writes last."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LMTOOL_", "PYTHONPATH"))}
    own = {"HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **KEYS}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE, cwd=home, env={**kept, **own}, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


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
