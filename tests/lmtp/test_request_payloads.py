"""Requests to JSON and back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.errors import LocalProtocolError, RequestError
from lmtool.lmtp import request_payloads
from lmtool.lmtp.messages import Cancel, Generate, ModelInfoRequest, Score
from lmtool.types import ChatMessage, Constraint, GenerateRequest, SamplingParams, ScoreRequest

IDS = st.integers(0, 2**31 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(min_size=1, max_size=20)
PROMPTS = (
    st.lists(IDS, max_size=5).map(tuple)
    | st.text()
    | st.lists(st.builds(ChatMessage, st.text(), st.text()), min_size=1, max_size=3).map(tuple)
)
SAMPLINGS = st.builds(
    SamplingParams,
    max_tokens=st.integers(0, 2**31 - 1),
    temperature=FINITE,
    top_k=st.integers(0, 100),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0, 10, exclude_min=True),
    presence_penalty=FINITE,
    frequency_penalty=FINITE,
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    logit_bias=st.dictionaries(IDS, FINITE, max_size=4),
    stop=st.lists(TEXTS, max_size=3).map(tuple),
    stop_token_ids=st.lists(IDS, max_size=3).map(tuple),
    min_tokens=st.integers(0, 100),
    ignore_eos=st.booleans(),
    top_logprobs=st.integers(0, 256),
    logprobs_mode=st.sampled_from(["raw", "biased", "processed"]),
)
KEYS = st.integers(0, 10**12).map(str)
NAMES = st.none() | st.text(max_size=20)
CONSTRAINTS = st.sampled_from(
    [None, Constraint("json_schema", '{"b":1,"a":true}', False, True), Constraint("choice", '["a","é"]')]
) | st.builds(Constraint, st.sampled_from(["regex", "grammar"]), TEXTS.filter(lambda text: "{" not in text))
GENERATES = st.builds(
    Generate,
    st.builds(GenerateRequest, KEYS, PROMPTS, SAMPLINGS, NAMES, st.booleans(), CONSTRAINTS, st.integers(-9, 9)),
    st.booleans(),
    st.booleans(),
)
SCORES = st.builds(
    Score,
    st.builds(
        ScoreRequest,
        KEYS,
        PROMPTS,
        st.lists(IDS, max_size=5).map(tuple) | st.text(),
        NAMES,
        st.none() | st.integers(0, 256),
        st.booleans(),
    ),
    st.booleans(),
    st.booleans(),
)
MESSAGES = (
    GENERATES
    | SCORES
    | st.builds(ModelInfoRequest, KEYS, NAMES, st.booleans(), st.booleans())
    | st.builds(Cancel, KEYS, NAMES, st.booleans())
)


def read(command, payload):
    members = {name: json.dumps(value).encode() for name, value in payload.items()}
    return request_payloads.read(command, command, request_payloads.stream_id(members), members)


@given(MESSAGES)
def test_round_trip(message):
    """What is written is read back as the same message."""
    command, payload = request_payloads.write(message)
    assert read(command, json.loads(payload)) == message


def test_defaults_are_left_out():
    """Nothing is sent that the server assumes anyway: LMQL's server fails on fields that it does not know."""
    command, payload = request_payloads.write(Generate(GenerateRequest("1", (5, 6), model="m")))
    assert (command, json.loads(payload)) == ("GENERATE", {"model": "m", "stream_id": 1, "prompt": [5, 6]})


@pytest.mark.parametrize(
    "sampling", [SamplingParams(temperature=float("nan")), SamplingParams(logit_bias={1: float("inf")})]
)
def test_infinite_numbers_are_not_sent(sampling):
    """JSON has no infinite numbers, so the caller is told."""
    with pytest.raises(LocalProtocolError, match="finite"):
        request_payloads.write(Generate(GenerateRequest("1", (1,), sampling)))


def test_half_a_surrogate_is_not_sent():
    """JSON text is Unicode, so the caller is told."""
    with pytest.raises(LocalProtocolError, match="surrogate"):
        request_payloads.write(Generate(GenerateRequest("1", "\ud800")))


@pytest.mark.parametrize(
    "request_",
    [
        GenerateRequest(
            1, (1,), SamplingParams(5, 1.0, 50, 0.9, repetition_penalty=1.1, logit_bias={1: 2.0}, top_logprobs=3)
        ),
        ScoreRequest(1, (1,), (2,)),
    ],
)
def test_plain_requests_need_no_extension(request_):
    """Token ids and what LMQL's server knows can be sent to any server."""
    assert request_payloads.extensions(request_) == []


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        (GenerateRequest(1, "text", text=True), ["prompt as text"]),
        (GenerateRequest(1, (ChatMessage("user", "hi"),), text=True), ["messages"]),
        (GenerateRequest(1, (1,), text=True), ["text"]),
        (GenerateRequest(1, (1,), SamplingParams(seed=1)), ["seed"]),
        (GenerateRequest(1, (1,), SamplingParams(stop=("x",), min_p=0.1)), ["min_p", "stop"]),
        (GenerateRequest(1, (1,), SamplingParams(top_logprobs=0)), ["top_logprobs 0 (1 is its least)"]),
        (GenerateRequest(1, (1,), constraint=Constraint("regex", "a")), ["constraint (regex)"]),
        (GenerateRequest(1, (1,), priority=1), ["priority"]),
        (ScoreRequest(1, (1,), "text", text=True), ["scored as text"]),
        (ScoreRequest(1, "text", (1,)), ["text", "prompt as text"]),
    ],
)
def test_extended_requests_need_extensions(request_, names):
    """Everything else only a server with extensions understands; what it is is named."""
    assert request_payloads.extensions(request_) == names


def test_stops_of_all_forms():
    """`stop` takes a text, an id, or both in a list; `stop_token_ids` adds to it."""
    base = {"stream_id": 1, "prompt": [1]}

    def stops(**fields):
        sampling = read("GENERATE", base | fields).request.sampling
        return sampling.stop, sampling.stop_token_ids

    assert stops(stop="x") == (("x",), ())
    assert stops(stop=3) == ((), (3,))
    assert stops(stop=["x", 3, "y"], stop_token_ids=[4]) == (("x", "y"), (3, 4))
    assert stops(stop=None) == ((), ())


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"prompt": [1]}, False),
        ({"prompt": []}, False),
        ({"prompt": "a"}, True),
        ({"prompt": ""}, True),
        ({"messages": [{"role": "user", "content": "a"}]}, True),
        ({"prompt": "a", "text": False}, False),
        ({"prompt": [1], "text": True}, True),
    ],
)
def test_text_mode_follows_the_prompt(payload, text):
    """A text asks for text, ids for ids, unless the request says otherwise."""
    assert read("GENERATE", {"stream_id": 1, **payload}).request.text is text


@pytest.mark.parametrize(
    ("command", "payload", "sentence"),
    [
        ("GENERATE", {}, "prompt is missing"),
        ("GENERATE", {"prompt": None}, "prompt is missing"),
        ("GENERATE", {"prompt": [1], "messages": [{"role": "a", "content": "b"}]}, "both prompt and messages"),
        ("GENERATE", {"prompt": [1.5]}, "prompt has 1.5 at index 0"),
        ("GENERATE", {"prompt": {}}, "prompt is {}"),
        ("GENERATE", {"prompt": [1], "model": 5}, "model is 5"),
        ("GENERATE", {"prompt": [1], "model": "x" * 5000}, "model is"),
        ("GENERATE", {"prompt": [1], "lmtp": 0}, "lmtp is 0"),
        ("GENERATE", {"prompt": [1], "progress": "yes"}, 'progress is "yes"'),
        ("SCORE", {"prompt": [1]}, "scored is missing"),
        ("SCORE", {"scored": [1]}, "prompt is missing"),
        ("SCORE", {"prompt": [1], "scored": [-1]}, "scored has -1 at index 0"),
        ("SCORE", {"prompt": [1], "scored": [1], "top_logprobs": -3}, "top_logprobs is -3"),
        ("MODEL_INFO", {"model": []}, r"model is \[\]"),
        ("CANCEL", {"model": 1}, "model is 1"),
        ("generate", {"prompt": [1]}, "Unknown command: generate; expected GENERATE, SCORE, MODEL_INFO, CANCEL"),
    ],
)
def test_bad_requests(command, payload, sentence):
    """A wrong or missing field is refused by its name."""
    with pytest.raises(RequestError, match=sentence):
        read(command, {"stream_id": 1, **payload})


@pytest.mark.parametrize(
    "members", [{}, {"stream_id": b"null"}, {"stream_id": b"NaN"}, {"stream_id": b'"' + b"x" * 1024 + b'"'}]
)
def test_unusable_ids(members):
    """An id has to be there, to be JSON, and to be short."""
    with pytest.raises(RequestError, match="stream_id"):
        request_payloads.stream_id(members)


def test_unknown_fields_are_noted():
    """Fields without a meaning are listed, but not endlessly; those of other commands count as unknown."""
    assert read("GENERATE", {"stream_id": 1, "prompt": [1], "max_token": 5, "n": 1}).ignored == ("max_token", "n")
    assert read("SCORE", {"stream_id": 1, "prompt": [1], "scored": [1], "temperature": 1}).ignored == ("temperature",)
    assert read("MODEL_INFO", {"stream_id": 1, "data": {"model": "m"}}).ignored == ()
    many = read("GENERATE", {"stream_id": 1, "prompt": [1], **{f"{'x' * 200}{i}": 1 for i in range(100)}}).ignored
    assert len(many) == 20
    assert all(len(name) == 64 for name in many)
