"""Making the recordings again."""

from __future__ import annotations

from pathlib import Path

from lmtool.trace.proxy import parse_target
from lmtool.trace.replaying import ReplayOptions, replay
from tests.recordings import record


async def test_recording_again_changes_nothing(served: str, tmp_path: Path) -> None:
    """What a client sent, sent and recorded again, is answered as before, however tokens are split over frames."""
    kept = record.FOLDER / "two_streams_interleaved.lmtp.jsonl"
    header, events = record.read(kept)
    place, made = tmp_path / kept.name, tmp_path / "made.lmtp.jsonl"
    place.write_bytes(kept.read_bytes())
    async with record.recorded(served, made, header, None) as here:
        await replay(events, parse_target(here), ReplayOptions(score=False))
    assert record.same(kept, made)
    assert record.put(made, place) == "unchanged"
    assert place.read_bytes() == kept.read_bytes()


def test_every_session_of_lmql_has_its_recording() -> None:
    """What is in the folder is what the script makes."""
    made = {f"lmql_{name}.lmtp.jsonl" for name in record.LMQL_SESSIONS}
    assert {path.name for path in record.FOLDER.glob("lmql_*")} == made


def test_a_difference_is_seen(tmp_path: Path) -> None:
    """A recording that says something else takes the place of the one that is there."""
    one, other = (record.FOLDER / f"{name}.lmtp.jsonl" for name in ("masks", "scores"))
    place = tmp_path / "a.lmtp.jsonl"
    assert record.put(one, place) == "new"
    assert record.put(one, place) == "unchanged"
    assert record.put(other, place) == "changed"
    assert place.read_bytes() == other.read_bytes()
