"""Requests: every field read with its range, and written without its defaults."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import LocalProtocolError, RequestError
from lmtool.core.types import (
    BufferSlice,
    ChatMessage,
    ChatPrompt,
    Constraint,
    GenerateRequest,
    MixedPrompt,
    SamplingParams,
    ScoreRequest,
)
from lmtool.protocol.lmtp import request_fields, request_payloads
from lmtool.protocol.lmtp.messages import BufferRequest, Cancel, Generate, ModelInfoRequest, ModelsRequest, Score
from lmtool.protocol.lmtp.request_fields import SAMPLING

IDS = st.integers(0, 2**31 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(min_size=1, max_size=20)
PROMPTS = (
    st.lists(IDS, max_size=5).map(tuple)
    | st.text()
    | st.builds(
        ChatPrompt,
        st.lists(
            st.builds(ChatMessage, st.text(), st.text(), tokens=st.none() | st.lists(IDS, max_size=3).map(tuple)),
            min_size=1,
            max_size=3,
        ).map(tuple),
        st.sampled_from([(), ({"type": "function", "function": {"name": "f"}},)]),
        st.sampled_from([{}, {"thinking": True}]),
        st.text(max_size=5),
    )
    | st.sampled_from([MixedPrompt(("a", (1, 2), "b", "c")), MixedPrompt(((3,), ""))])
    | st.sampled_from(
        [
            MixedPrompt((BufferSlice("a"),)),
            MixedPrompt((BufferSlice("a", 3), (1,), BufferSlice("b", 0), BufferSlice("a"), "x")),
        ]
    )
)
BUFFERS = st.text(min_size=1, max_size=256)
APPENDS = st.sampled_from([(), ("x",), ((1, 2), "x", "", (3,))])
TTLS = st.none() | st.floats(0, request_fields.MAX_TTL, exclude_min=True)
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
    st.builds(
        GenerateRequest,
        KEYS,
        PROMPTS,
        SAMPLINGS,
        NAMES,
        st.booleans(),
        CONSTRAINTS,
        st.integers(-9, 9),
        logprob_token_ids=st.lists(IDS, max_size=3).map(tuple),
        cache_salt=st.text(max_size=20),
    ),
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
        cache_salt=st.text(max_size=20),
    ),
    st.booleans(),
    st.booleans(),
)
MESSAGES = (
    GENERATES
    | SCORES
    | st.builds(ModelInfoRequest, KEYS, NAMES, st.booleans(), st.booleans())
    | st.builds(ModelsRequest, KEYS, NAMES, st.none(), st.booleans(), st.booleans())
    | st.builds(ModelsRequest, KEYS, st.none(), NAMES, st.booleans(), st.booleans())
    | st.builds(BufferRequest, KEYS, BUFFERS, APPENDS, st.just(False), TTLS, NAMES, st.booleans())
    | st.builds(BufferRequest, KEYS, BUFFERS, st.none(), st.just(True), st.none(), NAMES, st.booleans())
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
        (GenerateRequest(1, ChatPrompt((ChatMessage("user", "hi"),)), text=True), ["messages"]),
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
        ("GENERATE", {"prompt": [1], "tools": []}, "tools needs messages"),
        ("GENERATE", {"prompt": "a", "prefill": "b"}, "prefill needs messages"),
        ("GENERATE", {"messages": [{"role": "a", "content": "b"}], "tools": ["f"]}, 'tools has "f" at index 0'),
        ("GENERATE", {"messages": [{"role": "a", "content": "b"}], "prefill": 1}, "prefill is 1; expected a string"),
        ("GENERATE", {"prompt": [1.5]}, "prompt has 1.5 at index 0"),
        ("GENERATE", {"prompt": ["a", -1]}, "prompt has -1 at index 1"),
        ("GENERATE", {"prompt": {}}, "prompt is {}"),
        ("GENERATE", {"prompt": [1], "model": 5}, "model is 5"),
        ("GENERATE", {"prompt": [1], "model": "x" * 5000}, "model is"),
        ("GENERATE", {"prompt": [1], "lmtp": 0}, "lmtp is 0"),
        ("GENERATE", {"messages": [{"role": "user", "content": "", "tokens": [-1]}]}, r"messages\[0\].tokens has -1"),
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


def test_prefill_only():
    """It goes out without what it ignores, with a `max_tokens` for servers that do not know it, and comes back."""
    sampling = SamplingParams(max_tokens=9, temperature=0.5, seed=3)
    asked = GenerateRequest("1", "text", sampling, text=True, priority=2, prefill_only=True)
    command, payload = request_payloads.write(Generate(asked))
    fields = {"stream_id": 1, "prompt": "text", "prefill_only": True, "max_tokens": 0, "priority": 2}
    assert (command, json.loads(payload)) == ("GENERATE", fields)
    assert read(command, fields).request == replace(asked, sampling=SamplingParams(max_tokens=0))
    assert "prefill_only" in request_payloads.extensions(asked)


def test_generated():
    """What counts as generated goes out and comes back; LMQL's server does not know it."""
    asked = GenerateRequest("1", (1, 2), generated=(7, 8), resumable=True)
    command, payload = request_payloads.write(Generate(asked))
    fields = {"stream_id": 1, "prompt": [1, 2], "generated": [7, 8], "resumable": True}
    assert (command, json.loads(payload)) == ("GENERATE", fields)
    assert read(command, fields).request == asked
    assert request_payloads.extensions(asked) == ["generated", "resumable"]


GOOD = {
    "max_tokens": [0, 1, 2**31 - 1],
    "temperature": [-1, 0, 0.7, 1e9],
    "top_k": [0, 50],
    "top_p": [1e-9, 0.5, 1],
    "min_p": [0, 0.05, 1],
    "repetition_penalty": [0.1, 1, 1.3],
    "presence_penalty": [-2, 0, 2.5],
    "frequency_penalty": [-2, 0, 2.5],
    "seed": [0, -(2**63), 2**63 - 1],
    "logit_bias": [{}, {"0": 1}, {"50256": -100.5}],
    "stop_token_ids": [[], [0, 5]],
    "min_tokens": [0, 7],
    "ignore_eos": [True, False],
    "top_logprobs": [0, 1, 256, 50_257],
    "logprobs_mode": ["raw", "biased", "processed"],
}
BAD = {
    "max_tokens": [-1, 1.5, "5", True, 2**31, [1]],
    "temperature": ["hot", True, [], {}],
    "top_k": [-1, 2.5],
    "top_p": [0, 1.1, -0.1, "0.5"],
    "min_p": [-0.1, 1.1],
    "repetition_penalty": [0, -1],
    "presence_penalty": ["1"],
    "frequency_penalty": [False],
    "seed": [1.5, 2**63, "a"],
    "logit_bias": [[], {"a": 1}, {"-1": 1}, {"1": "2"}, {"1": None}, {"1.5": 1}, {str(2**31): 1}],
    "stop_token_ids": [[-1], ["a"], 5, list(range(65))],
    "min_tokens": [-1],
    "ignore_eos": [1, "true"],
    "top_logprobs": [-1, 2**31, True],
    "logprobs_mode": ["best", 1],
}


def cases(table):
    return [pytest.param(name, value, id=f"{name}-{value!r:.20}") for name in table for value in table[name]]


def test_every_sampling_parameter_has_a_field():
    """GENERATE can set every sampling parameter; `stop` has a form of its own."""
    assert set(SAMPLING) | {"stop"} == set(SamplingParams.__dataclass_fields__)
    assert set(GOOD) == set(BAD) == set(SAMPLING)


@pytest.mark.parametrize(("name", "value"), cases(GOOD))
def test_values_in_range(name, value):
    """A value in range is read as it is."""
    read = SAMPLING[name].read(name, json.dumps(value).encode())
    if name == "logit_bias":
        assert read == {int(token): float(nats) for token, nats in value.items()}
    else:
        assert read == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_values_out_of_range(name, value):
    """A value out of range is refused by a sentence with field, value and expectation."""
    text = json.dumps(value)
    with pytest.raises(RequestError) as refused:
        SAMPLING[name].read(name, text.encode())
    assert refused.value.message.startswith(f"{name} ")
    assert f"; expected {SAMPLING[name].expected}" in refused.value.message


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_numbers_are_finite(text):
    """A number that is none, or not finite, is refused by its spelling."""
    with pytest.raises(RequestError, match=f"temperature is {text.decode()}; expected a finite number"):
        SAMPLING["temperature"].read("temperature", text)


def test_the_culprit_is_named():
    """Of a long list or object the one bad element is shown."""
    prompt = json.dumps([*range(100), -5]).encode()
    with pytest.raises(RequestError, match=r"prompt has -5 at index 100; expected an array"):
        request_fields.PROMPT.read("prompt", prompt)
    bias = json.dumps({**{str(i): 1 for i in range(100)}, "x": 3}).encode()
    with pytest.raises(RequestError, match=r'logit_bias has \{"x":3\}; expected an object'):
        SAMPLING["logit_bias"].read("logit_bias", bias)


def test_a_mask_that_is_cut_off_is_refused():
    """An object that is not even JSON is refused like any bad value."""
    with pytest.raises(RequestError, match="logit_bias is"):
        SAMPLING["logit_bias"].read("logit_bias", b'{"1": NaN}')


def test_long_values_are_cut():
    """A sentence shows the start of a long value."""
    with pytest.raises(RequestError) as refused:
        SAMPLING["temperature"].read("temperature", json.dumps("x" * 10_000).encode())
    assert len(refused.value.message) < 200


@pytest.mark.parametrize("value", ["", 1.5, None, [""], [1.5], ["a"] * 65, "x" * 1025])
def test_stops_out_of_range(value):
    """A stop is a text that is not empty, an id, or a short list of them."""
    with pytest.raises(RequestError, match="stop "):
        request_fields.STOP.read("stop", json.dumps(value).encode())


@pytest.mark.parametrize("value", [[], [{}], [{"role": "user"}], [{"role": "user", "content": 5}], "hi", [5]])
def test_messages_out_of_range(value):
    """Messages have a role and a content, and there is at least one."""
    with pytest.raises(RequestError, match="messages "):
        request_fields.MESSAGES.read("messages", json.dumps(value).encode())
