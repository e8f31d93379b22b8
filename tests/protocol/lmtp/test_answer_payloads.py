"""TOKEN and MSG entries to JSON and back."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.types import LoadProgress, TokenOutput, Usage
from lmtool.protocol.lmtp import answer_payloads
from lmtool.protocol.lmtp.answer_payloads import LEAST_LOGPROB
from lmtool.protocol.lmtp.json_text import JsonTextError
from lmtool.protocol.lmtp.messages import FieldsIgnored, ModelInfoAnswer, Progress, RequestFailed, UnknownMessage

LOGPROBS = st.floats(-1e30, 0)
IDS = st.integers(0, 2**31 - 1)
KEYS = st.sampled_from(["1", '"a"', '{"a":[1,2]}', "1.5", "true"])
ALTERNATIVES = st.dictionaries(IDS, LOGPROBS, max_size=5).map(
    lambda found: tuple(sorted(found.items(), key=lambda pair: -pair[1]))
)
OUTPUTS = st.builds(
    TokenOutput,
    KEYS,
    IDS,
    LOGPROBS,
    st.none() | ALTERNATIVES,
    st.none() | st.text(),
    st.sampled_from([None, "stop", "length", "cancelled"]),
    st.none() | st.builds(Usage, st.integers(0), st.integers(0), st.integers(0)),
    warnings=st.lists(st.text(), max_size=2).map(tuple),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
) | st.builds(TokenOutput, KEYS, error=st.text(), error_code=st.text(min_size=1))


@given(st.lists(OUTPUTS, max_size=5))
def test_outputs_round_trip(outputs):
    """What is written of an output is read back as the same output."""
    entries = b",".join(answer_payloads.write_output(output, extended=True) for output in outputs)
    assert answer_payloads.read_tokens(f"[{entries.decode()}]") == tuple(outputs)


def test_old_clients_get_the_documents_fields():
    """Without extensions an entry has the fields of the document, and no other."""
    output = TokenOutput("7", 1256, -0.5, ((1256, -0.5),), usage=Usage(1, 2), warnings=("x",))
    assert json.loads(answer_payloads.write_output(output, extended=False)) == {
        "token": 1256,
        "stream_id": 7,
        "logprob": -0.5,
        "finish_reason": None,
        "top_logprobs": {"1256": -0.5},
    }
    failed = TokenOutput("7", error="no", error_code="server")
    assert json.loads(answer_payloads.write_output(failed, extended=False)) == {"stream_id": 7, "error": "no"}


def test_impossible_tokens():
    """The logarithm of 0 is the lowest float32, and an alternative of that kind is left out."""
    output = TokenOutput("1", 5, -math.inf, ((4, -1.0), (5, -math.inf), (6, math.nan)))
    entry = json.loads(answer_payloads.write_output(output, extended=False))
    assert entry["logprob"] == LEAST_LOGPROB
    assert entry["top_logprobs"] == {"4": -1.0}


def test_a_logprob_that_is_no_number():
    """NaN is a failure of the model's, and never sent."""
    with pytest.raises(ValueError, match="not a number"):
        answer_payloads.write_output(TokenOutput("1", 5, math.nan), extended=False)


def test_minus_infinity_is_read():
    """What LMQL's server writes for removed alternatives is left out; the rest of the entry counts."""
    (output,) = answer_payloads.read_tokens(
        '[{"token": 1, "stream_id": 1, "logprob": -0.5, "finish_reason": null,'
        ' "top_logprobs": {"1": -0.5, "2": -Infinity, "3": -0.25}}]'
    )
    assert output == TokenOutput("1", 1, -0.5, ((3, -0.25), (1, -0.5)))


def test_a_bare_object_is_read():
    """A single object stands for a list of one."""
    assert answer_payloads.read_tokens('{"token": 1, "stream_id": "a", "logprob": -1}') == (
        TokenOutput('"a"', 1, -1.0),
    )


def test_unknown_fields_and_reasons():
    """Unknown fields are passed over; an unknown reason still ends the stream."""
    (output,) = answer_payloads.read_tokens('[{"token": 1, "stream_id": 1, "finish_reason": "eos", "new": {}}]')
    assert output == TokenOutput("1", 1, finish_reason="stop")


def test_one_bad_entry_of_several():
    """An entry that makes no sense fails its own stream; its neighbours are read."""
    good, bad = answer_payloads.read_tokens('[{"token": 1, "stream_id": 1}, {"token": "x", "stream_id": 2}]')
    assert good == TokenOutput("1", 1)
    assert bad.stream_id == "2"
    assert bad.error_code == "protocol"


@pytest.mark.parametrize("payload", ["", "[", "[1]", "5", '[{"token": 1}]', "null", "[[]]"])
def test_payloads_that_cannot_be_read(payload):
    """Without an id nobody can be told, so the frame as a whole is refused."""
    with pytest.raises(JsonTextError):
        answer_payloads.read_tokens(payload)
    with pytest.raises(JsonTextError):
        answer_payloads.read_messages(payload)


@pytest.mark.parametrize(
    "message",
    [
        RequestFailed(None, "no"),
        RequestFailed("1", "no", "server"),
        ModelInfoAnswer("1", {"model": "m"}),
        ModelInfoAnswer("1", "<unavailable>"),
        Progress("1", LoadProgress("m", "loading", 1, 2, "half")),
        FieldsIgnored("1", ("a", "b")),
    ],
)
def test_messages_round_trip(message):
    """What is written of a message is read back as the same message, from a list and alone."""
    entry = answer_payloads.write_message(message).decode()
    assert answer_payloads.read_messages(f"[{entry}]") == [message]
    assert answer_payloads.read_messages(entry) == [message]


@pytest.mark.parametrize(
    "entry",
    ['{"stream_id": 1, "new": 1}', '{"stream_id": null}', '{"stream_id": 1, "progress": {"phase": "sideways"}}'],
)
def test_unknown_messages(entry):
    """A MSG of an unknown kind is known as that."""
    assert isinstance(answer_payloads.read_messages(entry)[0], UnknownMessage)


def test_model_info_of_any_kind():
    """Some servers tell a list or a number; it is kept as text."""
    assert answer_payloads.read_messages('[{"stream_id": 1, "model_info": [1]}]') == [ModelInfoAnswer("1", "[1]")]


FAILED = TokenOutput(
    "7", error="no; wait", error_code="overloaded", error_hints=("wait",), retryable=True, retry_after=3
)


def test_errors_round_trip():
    """All that is known of an error is written for a client that knows the extensions, and read again."""
    entry = answer_payloads.write_output(FAILED, extended=True).decode()
    told = json.loads(entry)
    assert [told[name] for name in ("retryable", "retry_after", "hints")] == [True, 3, ["wait"]]
    (read,) = answer_payloads.read_tokens(f"[{entry}]")
    assert (read.error_hints, read.retryable, read.retry_after) == (("wait",), True, 3)
    (message,) = answer_payloads.read_messages(f"[{entry}]")
    assert (message.hints, message.retryable, message.retry_after) == (("wait",), True, 3)
    assert answer_payloads.write_message(message).decode() == entry
    assert set(json.loads(answer_payloads.write_output(FAILED, extended=False))) == {"stream_id", "error"}


@pytest.mark.parametrize(("told", "seconds"), [(-5, 0), (0.2, 1), (1e300, 86400), (None, 0), (90000, 86400)])
def test_pauses_that_are_believed(told, seconds):
    """Whole seconds from 0 to a day, whatever a server says."""
    entry = json.dumps([{"stream_id": 1, "error": "no", "retry_after": told}])
    assert answer_payloads.read_tokens(entry)[0].retry_after == seconds
    assert answer_payloads.read_messages(entry)[0].retry_after == seconds


def test_details_that_make_no_sense():
    """A MSG error stays one, with what is known of it."""
    (failed,) = answer_payloads.read_messages('[{"stream_id": 1, "error": "no", "hints": 5, "retryable": "yes"}]')
    assert (failed.error, failed.hints, failed.retryable) == ("no", (), None)
