"""Requests of the inspector's own, and a server watched through them."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from lmtool.core.errors import ConnectError, FileError, RequestError, UnknownModelError, UsageError
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.terminal.tui.event_store import EventStore
from lmtool.terminal.tui.exports import preamble
from lmtool.terminal.tui.request_builder import TextToScore
from lmtool.terminal.tui.sources.connect import ConnectSource
from lmtool.terminal.tui.sources.event_pipeline import EventPipeline
from lmtool.terminal.tui.sources.requests import RequestSource, parse_prompt, parse_score
from lmtool.trace.events import Close, Drop, Event, Frame, Open
from lmtool.trace.reader import TraceReader
from lmtool.trace.statistics import TraceFigures
from tests.protocol.lmtp.harness import serving
from tests.scripted_model import ScriptedModel, tokens_of
from tests.terminal.tui.sources_running import no_tokenizer, watching


def source(url: str, **more: object) -> ConnectSource:
    return ConnectSource(url, pytest.fail, find_tokenizer=no_tokenizer, **more)  # type: ignore[arg-type]


def ask(*prompt: int, tokens: int = 5) -> GenerateRequest:
    return GenerateRequest(0, prompt, SamplingParams(max_tokens=tokens))


def asking(url: str, fed: list[Event], model: str | None = None) -> RequestSource:
    pipeline = EventPipeline(pytest.fail, at="client")
    pipeline.feed_to(fed.extend)
    return RequestSource(url, pipeline, itertools.count(1).__next__, model=model, find_tokenizer=no_tokenizer)


class TestConnect:
    """The inspector's own prompts on a server."""

    async def test_prompts_are_sent_at_once_and_their_streams_fed(self) -> None:
        """The server is asked what it serves, then the prompts run side by side; each frame is fed with its time."""
        async with serving(ScriptedModel()) as served, watching(source(served.url, prompts=[ask(1), ask(2)])) as watch:
            await watch.until(lambda: watch.ends() == 2)
            assert watch.tokens() == {"1/2": tokens_of((1,), 5), "1/3": tokens_of((2,), 5)}
            assert [frame.partition(" ")[0] for frame in watch.frames(">")] == ["MODEL_INFO", "GENERATE", "GENERATE"]
            times = [event.time for event in watch.events]
            assert times == sorted(times)
            assert isinstance(watch.events[0], Open)

    async def test_requests_get_labels(self) -> None:
        """`generate` and `score` return the label under which the stream's tokens come."""
        async with serving(ScriptedModel()) as served, watching(source(served.url)) as watch:
            first = await watch.source.send(ask(7))
            second = await watch.source.send(TextToScore((1, 2), (3,), "", (4,)))
            await watch.until(lambda: watch.ends() == 2)
            assert watch.tokens() == {first: tokens_of((7,), 5), second: [3, 4]}

    async def test_cancel_ends_a_stream_of_ours(self) -> None:
        """`cancel` ends the stream of this label; an unknown label does nothing."""
        model = ScriptedModel(manual=True)
        async with serving(model) as served, watching(source(served.url)) as watch:
            label = await watch.source.send(ask(7, tokens=1000))
            watch.source.cancel("9/9")
            watch.source.cancel(label)
            await watch.until(lambda: any(frame.startswith("CANCEL") for frame in watch.frames(">")))

    async def test_a_server_that_is_not_there(self) -> None:
        """`run` raises where nobody answers."""
        async with serving(ScriptedModel()) as served:
            url = served.url
        async with watching(source(url)) as watch:
            await watch.until(watch.over.is_set)
            assert isinstance(watch.error, ConnectError)
            assert watch.events == []

    async def test_a_server_that_goes_and_comes_back(self) -> None:
        """A lost server ends `run` with an error and is told as a drop; the next request is on a new connection."""
        model = ScriptedModel(manual=True)
        async with serving(model) as served, watching(source(served.url)) as watch:
            await watch.source.send(ask(7, tokens=1000))
            await watch.until(lambda: any(frame.startswith("GENERATE") for frame in watch.frames(">")))
            await served.server.drain(0)
            await watch.until(watch.over.is_set)
            assert isinstance(watch.error, ConnectError)
            assert isinstance(watch.events[-1], Drop)
        async with serving(ScriptedModel()) as served, watching(source(served.url)) as watch:
            assert await watch.source.send(ask(7)) == "1/2"

    async def test_run_goes_on_after_a_loss(self) -> None:
        """When a request found the server back, `run` can be awaited again; prompts are not sent twice."""
        model = ScriptedModel(manual=True)
        async with serving(model) as served:
            connected = source(served.url, prompts=[ask(1)])
            async with watching(connected) as watch:
                await watch.until(lambda: len(watch.frames(">")) == 2)
                link = await connected._requests.connect()
                link._task.cancel()
                await watch.until(watch.over.is_set)
                await connected.send(ask(2))
                again = asyncio.create_task(connected.run(watch.feed))
                await watch.until(lambda: sum(frame.startswith("GENERATE") for frame in watch.frames(">")) == 2)
                assert not again.done()
                again.cancel()
                await asyncio.gather(again, return_exceptions=True)

    async def test_closing_is_told_as_ours(self) -> None:
        """When the inspector ends, its connection is closed in good order."""
        async with serving(ScriptedModel()) as served:
            async with watching(source(served.url)) as watch:
                await watch.until(lambda: any(frame.startswith("MSG") for frame in watch.frames("<")))
            assert isinstance(watch.events[-1], Close)
            assert watch.events[-1].by == "client"

    async def test_not_staying(self) -> None:
        """With `stay` off, `run` returns when all prompts were answered."""
        async with (
            serving(ScriptedModel()) as served,
            watching(source(served.url, prompts=[ask(1)], stay=False)) as watch,
        ):
            async with asyncio.timeout(30):
                await watch.over.wait()
            assert watch.error is None
            assert watch.ends() == 1

    async def test_a_request_that_cannot_be_sent(self) -> None:
        """What the server refuses ends its own stream; what cannot be written is raised."""
        async with serving(ScriptedModel()) as served, watching(source(served.url)) as watch:
            await watch.source.send(ask(5000))
            await watch.until(lambda: watch.ends() == 1)
            assert "not in the vocabulary" in watch.frames("<")[-1]

    async def test_recording_that_starts_in_the_middle(self, tmp_path: Path) -> None:
        """A recording begins with what runs: its request, its tokens so far; then it has everything that comes."""
        path = tmp_path / "late.lmtp.jsonl"
        model = ScriptedModel(manual=True)
        async with serving(model) as served, watching(source(served.url)) as watch:
            await watch.source.send(ask(7, tokens=3))
            await watch.until(lambda: len(watch.frames(">")) == 2)
            async with asyncio.timeout(30):
                while not model.running:
                    await asyncio.sleep(0)
            model.step()
            await watch.until(watch.tokens)
            spool = EventStore()
            spool.feed(watch.events)
            watch.source.start_recording(path, preamble(spool))
            with pytest.raises(UsageError, match="being recorded already"):
                watch.source.start_recording(tmp_path / "other")
            model.step()
            model.step()
            await watch.until(lambda: watch.ends() == 1)
            assert watch.source.recording.tokens == 3
            facts = await watch.source.stop_recording()
            assert (facts.path, facts.tokens, facts.failed) == (path, 3, "")
            assert facts.size_bytes == path.stat().st_size
            assert await watch.source.stop_recording() is None
        reader = TraceReader(path)
        events = list(reader)
        assert isinstance(events[0], Open)
        assert isinstance(events[1], Frame)
        assert events[1].command == "GENERATE"
        assert [event.time for event in events[:2]] == [0, 0]
        assert events[0].facts["before"] > 0
        figures = TraceFigures()
        for event in events:
            figures.add(event)
        asked, first, *_, last = [event.time for event in watch.events if isinstance(event, Frame)][2:]
        (told,) = figures.as_json()["listed"]
        assert told["ttft_ms"] == pytest.approx(1000 * (first - asked), abs=0.01)
        assert events[-1].time >= events[-2].time == pytest.approx(last - asked, abs=1e-5)
        assert all(isinstance(event, Frame) and event.command == "TOKEN" for event in events[2:-1])
        assert reader.ending.state == "complete"
        assert reader.header.model["name"] == "scripted"
        async with serving(model) as served, watching(source(served.url)) as watch:
            with pytest.raises(FileError, match="exists already"):
                watch.source.start_recording(path)

    async def test_typed_prompts_become_ids_where_the_tokenizer_is_here(self, embedded: str) -> None:
        """A text is templated and cut here, so that its stream can be continued; ids are explained first."""
        from lmtool.inference.text.tokenizer import load_tokenizer
        from lmtool.inference.tiny.path import MODEL_DIR
        from lmtool.trace.events import Vocab

        tokenizer = load_tokenizer(str(MODEL_DIR))
        here = ConnectSource(embedded, pytest.fail, find_tokenizer=lambda _info: tokenizer)
        async with watching(here) as watch:
            await watch.source.send(GenerateRequest(0, "Hello", SamplingParams(max_tokens=2, top_logprobs=3)))
            await watch.until(lambda: watch.ends() == 1)
            assert '"prompt":[' in watch.frames(">")[1]
            told: dict[int, str | bytes] = {}
            for event in watch.events:
                if isinstance(event, Vocab):
                    told |= event.tokens
            (tokens,) = watch.tokens().values()
            assert set(tokens) <= set(told)
            label = await watch.source.send(TextToScore("The capital of France is", (9, 8), " Paris", (7,)))
            await watch.until(lambda: watch.ends() == 2)
            assert watch.tokens()[label] == [9, 8, *tokenizer.encode_continuation(" Paris"), 7]

    async def test_text_is_asked_for_where_it_is_not(self, embedded: str) -> None:
        """Without the tokenizer here, the server makes the prompt and tells the texts; an edited text goes whole."""
        async with watching(source(embedded)) as watch:
            await watch.source.send(GenerateRequest(0, "Hello", SamplingParams(max_tokens=1)))
            await watch.until(lambda: watch.ends() == 1)
            assert '"messages":[' in watch.frames(">")[1]
            assert '"text":' in watch.frames("<")[-1]
            await watch.source.send(TextToScore((5,), (9, 8), " Paris", (7,), whole="ab Paris c"))
            await watch.until(lambda: watch.ends() == 2)
            assert '"scored":"ab Paris c"' in watch.frames(">")[-1]


class TestRequests:
    """Requests of the inspector's own."""

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("ws://127.0.0.1:8080/", ":8080"),
            ("localhost:81", ":81"),
            ("wss://models.example/", "models.example"),
            ("stdio:lmtool serve --stdio", "lmtool"),
        ],
    )
    async def test_where(self, url: str, shown: str) -> None:
        """A server is named as briefly as it can be."""
        assert asking(url, []).where == shown

    async def test_a_malformed_endpoint(self) -> None:
        """What is no endpoint is refused at once."""
        with pytest.raises(UsageError):
            asking("ftp://x", [])

    async def test_a_model_that_is_not_served(self) -> None:
        """The server's refusal is raised, and the connection let go of."""
        async with serving(ScriptedModel()) as served:
            one = asking(served.url, [], model="other")
            with pytest.raises(UnknownModelError, match="not served"):
                await one.connect()
            await one.close()

    async def test_a_request_that_cannot_be_written(self) -> None:
        """What is no request raises, and sends nothing."""
        async with serving(ScriptedModel()) as served:
            one = asking(served.url, [])
            with pytest.raises(RequestError):
                await one.generate(GenerateRequest(0, (1,), SamplingParams(temperature=float("nan"))))
            await one.close()

    async def test_each_life_of_the_connection_has_its_number(self) -> None:
        """After a loss the next request connects again, as connection 2."""
        fed: list[Event] = []
        async with serving(ScriptedModel()) as first:
            one = asking(first.url, fed)
            assert await one.generate(GenerateRequest(0, (1,))) == "1/2"
            await one.until_ended()
            link = await one.connect()
            await link.close()
            assert await one.generate(GenerateRequest(0, (1,))) == "2/2"
            await one.close()
            await asyncio.sleep(0)
        assert [event.connection for event in fed if isinstance(event, Open)] == [1, 2]


class TestTypedLines:
    """Typed lines as requests."""

    def test_parameters_at_the_end(self) -> None:
        """Trailing `name=value` words set parameters; in running text they stay text."""
        asked = parse_prompt("let x=1 and seed=3 be temperature=.8 max_tokens=5")
        assert asked.prompt == "let x=1 and seed=3 be"
        assert (asked.sampling.temperature, asked.sampling.max_tokens, asked.sampling.seed) == (0.8, 5, None)

    def test_alternatives_are_asked_for(self) -> None:
        """Five a token, unless the line says otherwise."""
        assert parse_prompt("Hi").sampling.top_logprobs == 5
        assert parse_prompt("Hi top_logprobs=20").sampling.top_logprobs == 20

    @pytest.mark.parametrize("word", ["max_tokens=many", "top_k=1.5", "temperature=true", "seed=[1]"])
    def test_values_that_are_none(self, word: str) -> None:
        """The name and the value are told, and what was expected."""
        with pytest.raises(UsageError, match="expected a"):
            parse_prompt(f"Hi {word}")

    def test_scores(self) -> None:
        """An arrow parts prompt and text; without one all of it is scored."""
        assert (parse_score("The capital is => Paris").prompt, parse_score("a => b").text) == ("The capital is", " b")
        assert (parse_score("all of it").prompt, parse_score("all of it").text) == ("", "all of it")
        assert (parse_score("a => b").whole, parse_score("a => b").before) == (" b", ())
