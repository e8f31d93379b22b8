"""`lmtool trace cut`."""

from __future__ import annotations

import json
from pathlib import Path

from lmtool.trace.events import End, Frame, Open, Vocab
from lmtool.trace.reader import TraceReader
from tests.cli.trace_runner import CONVERSATION, trace


def test_a_part_is_a_trace(tmp_path: Path) -> None:
    """The part has its own header, what it needs, and an end record."""
    (tmp_path / "a").write_text(CONVERSATION)
    result = trace("cut", tmp_path / "a", "--from", "0.015", "--to", "0.03", "-O", tmp_path / "b")
    assert result.exit_code == 0
    reader = TraceReader(tmp_path / "b")
    assert [type(event) for event in reader] == [Open, Vocab, Frame, End]
    assert reader.ending is not None
    assert reader.ending.state == "complete"
    assert reader.header.title == "one stream"


def test_blobs_are_fetched(tmp_path: Path) -> None:
    """A blob before the part is put into it when a frame of the part refers to it."""
    lines = [
        '{"lmtp_trace": 1}',
        '[0, "blob", 0, {"sha256": "ab", "value": {"1": 2}}]',
        '[1, ">", 1, "GENERATE", {"logit_bias": {"$blob": "ab"}}]',
    ]
    (tmp_path / "a").write_text("\n".join(lines) + "\n")
    assert trace("cut", tmp_path / "a", "--from", "0.5", "-O", tmp_path / "b").exit_code == 0
    assert '"value": {"1":2}' in (tmp_path / "b").read_text()
    (tmp_path / "a").write_text("\n".join(lines[::2]) + "\n")
    result = trace("cut", tmp_path / "a", "-O", tmp_path / "c")
    assert result.exit_code == 7
    assert "refers to the blob ab" in result.stderr


def test_times_in_the_wrong_order_are_refused(tmp_path: Path) -> None:
    """--to before --from is a usage error."""
    (tmp_path / "a").write_text(CONVERSATION)
    assert trace("cut", tmp_path / "a", "--from", "2", "--to", "1", "-O", tmp_path / "b").exit_code == 2


def test_two_traces_as_one(tmp_path: Path) -> None:
    """All events in order of time, connections apart, an end record; cut sources are told."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(CONVERSATION)
    result = trace("merge", tmp_path / "a", tmp_path / "b", "-O", tmp_path / "c.gz")
    assert result.exit_code == 0
    assert result.stderr.count("is cut") == 2
    reader = TraceReader(tmp_path / "c.gz")
    assert {event.connection for event in reader} == {0, 1, 2}
    assert reader.ending is not None
    assert reader.ending.state == "complete"


def test_prompts_go_and_outputs_stay(tmp_path: Path) -> None:
    """The prompt's ids and their text are gone; the header says what was left out."""
    (tmp_path / "a").write_text(CONVERSATION)
    result = trace("redact", tmp_path / "a", "-O", tmp_path / "b")
    assert result.exit_code == 0
    text = (tmp_path / "b").read_text()
    assert "secret" not in text
    assert "[5,6]" not in text.replace(" ", "")
    assert " there" in text
    reader = TraceReader(tmp_path / "b")
    list(reader)
    assert reader.header.redacted == ("headers", "prompt")
    assert reader.ending is not None
    assert reader.ending.state == "complete"


def test_prompts_in_blobs_go(tmp_path: Path) -> None:
    """A prompt that was kept as a blob is gone too, and so is a mask: it may force what the client wants said."""
    prompt, mask = list(range(4000)), {str(i): -100 for i in range(4000)}
    payload = {"prompt": {"$blob": "p"}, "logit_bias": {"$blob": "m"}, "stream_id": 1}
    lines = [
        '{"lmtp_trace": 1}',
        json.dumps([0, "blob", 0, {"sha256": "p", "value": prompt}]),
        json.dumps([0, "blob", 0, {"sha256": "m", "value": mask}]),
        json.dumps([0, ">", 1, "GENERATE", payload]),
    ]
    (tmp_path / "a").write_text("\n".join(lines) + "\n")
    assert trace("redact", tmp_path / "a", "-O", tmp_path / "b").exit_code == 0
    text = (tmp_path / "b").read_text()
    assert "3999, 4000" not in text
    assert "3998,3999" not in text.replace(" ", "")
    assert '"3999"' not in text
    assert '"n": 4000' in text


def test_what_looks_like_a_key_goes(tmp_path: Path) -> None:
    """`***` stands for it, whatever else is redacted; the line stays JSON after a private key without an end."""
    key, pem = "sk-" + "a1" * 20, "-----BEGIN PRIVATE KEY-----\nMIIEx"
    lines = [[0, "note", 1, f"MSG {key}"], [0, "open", 1, {"agent": pem, "peer": "client"}]]
    (tmp_path / "a").write_text('{"lmtp_trace": 1}\n' + "".join(f"{json.dumps(line)}\n" for line in lines))
    result = trace("redact", tmp_path / "a", "-O", tmp_path / "b", "--what", "headers")
    assert result.exit_code == 0
    assert "a1a1" not in (tmp_path / "b").read_text()
    assert "MIIEx" not in (tmp_path / "b").read_text()
    assert [event.facts for event in TraceReader(tmp_path / "b") if isinstance(event, Open)] == [
        {"agent": "***", "peer": "client"}
    ]


def test_unknown_kinds_are_refused(tmp_path: Path) -> None:
    """A kind that cannot be redacted is a usage error, and nothing is written."""
    (tmp_path / "a").write_text(CONVERSATION)
    assert trace("redact", tmp_path / "a", "-O", tmp_path / "b", "--what", "promt").exit_code == 2
    assert not (tmp_path / "b").exists()
