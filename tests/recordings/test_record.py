"""Making the recordings again."""

from __future__ import annotations

from pathlib import Path

from tests.recordings import record
from tests.recordings.scenarios import SCENARIOS


async def test_recording_again_changes_nothing(served: str, tmp_path: Path) -> None:
    """A recording made again says what the one that is kept says, however its tokens were split over frames."""
    scenario = next(one for one in SCENARIOS if one.name == "two_streams_interleaved")
    kept = record.FOLDER / record.file_name(scenario)
    place = tmp_path / kept.name
    place.write_bytes(kept.read_bytes())
    made = tmp_path / "made.lmtp.jsonl"
    await record.make(scenario, made, served)
    assert record.same(kept, made)
    assert record.put(made, place) == "unchanged"
    assert place.read_bytes() == kept.read_bytes()


def test_every_scenario_has_its_recording() -> None:
    """What is in the folder is what the script makes."""
    made = {record.file_name(scenario) for scenario in SCENARIOS}
    made |= {f"{name}.lmtp.jsonl" for name in record.WRITTEN} | {f"lmql_{n}.lmtp.jsonl" for n in record.LMQL_SESSIONS}
    assert {path.name for path in record.FOLDER.iterdir() if ".lmtp.jsonl" in path.name} == made


def test_a_difference_is_seen(tmp_path: Path) -> None:
    """A recording that says something else takes the place of the one that is there."""
    one, other = (record.FOLDER / f"{name}.lmtp.jsonl" for name in ("masks", "scores"))
    place = tmp_path / "a.lmtp.jsonl"
    assert record.put(one, place) == "new"
    assert record.put(one, place) == "unchanged"
    assert record.put(other, place) == "changed"
    assert place.read_bytes() == other.read_bytes()
