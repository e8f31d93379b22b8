"""A trace as a source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lmtool.core.errors import FileError, UsageError
from lmtool.core.types import GenerateRequest, ModelInfo, SamplingParams, TokenizerInfo
from lmtool.terminal.tui.sources.source import FileSource
from lmtool.trace.codec import Header
from lmtool.trace.events import Remark, Vocab
from lmtool.trace.writer import TraceWriter
from tests.protocol.lmtp.harness import serving
from tests.scripted_model import ScriptedModel, tokens_of
from tests.terminal.tui.sources_running import no_tokenizer, watching

RECORDINGS = Path(__file__).parents[3] / "recordings"


def source(path: Path, **more: object) -> FileSource:
    return FileSource(path, pytest.fail, find_tokenizer=no_tokenizer, **more)  # type: ignore[arg-type]


class Named(ScriptedModel):
    """Has a tokenizer, as it says."""

    async def info(self, model: str | None = None) -> ModelInfo:
        return replace(await super().info(model), tokenizer=TokenizerInfo("t", "tiny"))


class Spelled:
    """A tokenizer of which ids are numbers between signs."""

    has_chat_template = False

    def piece(self, token: int) -> bytes:
        return f"<{token}>".encode()


class TestFile:
    """Trace files as sources."""

    async def test_a_file_is_read_and_over(self) -> None:
        """All of the file is in its state when `run` returns; nothing can be asked or recorded."""
        async with watching(source(RECORDINGS / "two_streams_interleaved.lmtp.jsonl")) as watch:
            await watch.until(watch.over.is_set)
            assert len(watch.source.file.state.streams) == 2
            assert not watch.source.takes_requests
            assert "--connect" in watch.source.no_requests
            with pytest.raises(UsageError, match="is a recording already"):
                watch.source.start_recording(Path("x"))

    async def test_a_packed_file(self) -> None:
        """A file that was packed with gzip is read as any other."""
        async with watching(source(RECORDINGS / "a_frame_too_long.lmtp.jsonl.gz")) as watch:
            await watch.until(watch.over.is_set)
            assert watch.error is None

    async def test_a_wrong_file(self, tmp_path: Path) -> None:
        """What is no trace is refused at once, what goes wrong later ends `run`."""
        path = tmp_path / "no.txt"
        path.write_text("hello\n")
        with pytest.raises(FileError, match="not a trace header"):
            source(path)
        path.write_text('{"lmtp_trace": 1}\nhello\n')
        async with watching(source(path)) as watch:
            await watch.until(watch.over.is_set)
            assert isinstance(watch.error, FileError)

    async def test_a_file_without_its_end(self, tmp_path: Path) -> None:
        """All there is is read; that it breaks off is told."""
        path, told = tmp_path / "cut.lmtp.jsonl", list[str]()
        lines = (RECORDINGS / "two_streams_interleaved.lmtp.jsonl").read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:-1]))
        async with watching(FileSource(path, told.append, find_tokenizer=no_tokenizer)) as watch:
            await watch.until(watch.over.is_set)
            assert told == ["cut.lmtp.jsonl is cut: there is no end record"]
            assert len(watch.source.file.state.streams) == 2

    async def test_branches_of_a_file_run_on_a_server(self) -> None:
        """With a server beside it, requests run on a connection of their own, after the file's last second."""
        async with serving(ScriptedModel()) as served:
            file = source(RECORDINGS / "two_streams_interleaved.lmtp.jsonl", endpoint=served.url)
            async with watching(file) as watch:
                label = await watch.source.send(GenerateRequest(0, (5,), SamplingParams(max_tokens=3)))
                await watch.until(lambda: watch.ends() == 1)
                assert label == "2/2"
                assert watch.tokens() == {label: tokens_of((5,), 3)}
                assert watch.events[0].time >= file.file.state.now > 0

    @pytest.mark.parametrize(
        ("header", "words", "same"),
        [
            ({"tokenizer": {"name": "t", "sha256": "tiny"}, "vocab_size": 7}, {5: "z"}, True),
            ({"tokenizer": {"name": "t", "sha256": "other"}}, {}, False),
            ({}, {5: "<5>", 6: ""}, True),
            ({}, {5: "<5>", 6: "six"}, False),
            ({"vocab_size": 7}, {}, False),
            ({"vocab_size": 1000}, {}, None),
            ({}, {}, None),
        ],
    )
    async def test_whether_ids_mean_the_same(
        self, header: dict[str, object], words: dict[int, str], same: bool | None, tmp_path: Path
    ) -> None:
        """A trace's ids are never sent where they mean other tokens; where nobody can tell, a note says so."""
        writer = TraceWriter(tmp_path / "a.lmtp.jsonl", Header(model=header))
        writer.write(Vocab(0.0, 0, words))
        writer.close(1.0)
        request = GenerateRequest(0, (5,), SamplingParams(max_tokens=3))
        async with serving(Named()) as served:
            file = FileSource(
                tmp_path / "a.lmtp.jsonl",
                pytest.fail,
                find_tokenizer=lambda _info: Spelled() if words else None,  # type: ignore[arg-type, return-value] # spells ids
                endpoint=served.url,
            )
            async with watching(file) as watch:
                if same is False:
                    with pytest.raises(UsageError, match="another tokenizer than that of scripted"):
                        await watch.source.send(request)
                    return
                await watch.source.send(request)
                notes = [event.text for event in watch.events if isinstance(event, Remark)]
                assert [("nothing says" in note) for note in notes] == [True] * (same is None)
