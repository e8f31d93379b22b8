"""The pictures of README, drawn from fixed seeds: `python -m tests.docs.pictures` draws all of them anew.

Each is what a terminal shows of answers of the included model. Tokens, probabilities and colours are those of the
seeds; times differ from run to run, so the inspector gets every token at a time of its own, the same on every run. So
pictures can be compared character by character (`test_pictures`).
"""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from lmtool import api
from lmtool.cli.inspect_servers import find_tokenizer
from lmtool.core.sampling_parameters import PROMPT_MAX_TOKENS
from lmtool.core.types import SamplingParams
from lmtool.terminal.tui.app import InspectorApp
from lmtool.terminal.tui.event_store import EventStore
from lmtool.terminal.tui.exports import picture, without_web_fonts
from lmtool.terminal.tui.options import InspectorOptions
from lmtool.terminal.tui.sources.connect import ConnectSource
from lmtool.terminal.tui.sources.demo import racing
from lmtool.trace.events import Event, Frame, JsonText, Open, Vocab, token_entries
from tests.terminal.tui.scripted import Scripted, Watched

if TYPE_CHECKING:
    from lmtool.core.types import GenerateRequest
    from lmtool.protocol.lmtp.frames import Entry

FOLDER = Path(__file__).parent.parent.parent / "recordings"
REDRAW = "python -m tests.docs.pictures"
CHAT = ("Tell me a story about a fox.", "-t", "1", "--seed", "7", "-n", "28", "--n-streams", "4", "--heat")
COLUMNS = 104
STEP = 0.02
"""Seconds between two tokens of a picture."""
PROMPTS = ("Tell me a story about a fox.", "Tell me a story about a lighthouse.", "What is the capital of France?")
SAMPLING = SamplingParams(max_tokens=PROMPT_MAX_TOKENS, temperature=0.9, top_logprobs=8, seed=1)
INSPECTED = {
    "inspector": (PROMPTS, SAMPLING, (120, 34), ("k", "k", "u")),
    "branching": (PROMPTS[:1], SAMPLING, (COLUMNS, 22), ("u", "3", "b", "=")),
}
"""Pictures of the inspector: prompts, parameters, columns and rows, and the keys that are pressed then."""
FACTS = ("model", "vocab_size", "bos_token_id", "eos_token_ids", "lmtp", "extensions")
"""Of the model, that are the same on every machine."""
PICTURES = ("four_streams", *INSPECTED)


def four_streams(url: str) -> str:
    """Run the command against a server, and draw what a terminal would show."""
    words = [sys.executable, "-m", "lmtool", "chat", *CHAT, "-e", url, "--color", "always"]
    around = {
        name: value for name, value in os.environ.items() if not name.startswith("LMTOOL_") and name != "NO_COLOR"
    }
    shown = subprocess.run(
        words, capture_output=True, text=True, check=True, env=around | {"COLUMNS": str(COLUMNS)}
    ).stdout
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(f'$ lmtool chat "{CHAT[0]}" {" ".join(CHAT[1:])}', style="bold"))
    console.print(Text.from_ansi(shown))
    return without_web_fonts(console.export_svg(title="lmtool chat"))


class SteadySource(Scripted):
    """Answers of a real server, fed once they are whole: each token in a frame and at a time of its own."""

    def __init__(self, url: str, prompts: Sequence[GenerateRequest]) -> None:
        """Answer these prompts, then what is asked for."""
        super().__init__()
        self.title = "connect :8080"
        self._server = ConnectSource(url, print, find_tokenizer=find_tokenizer)
        self._collected: list[Event] = []
        self._prompts = prompts
        self._time = 0.0

    async def answer(self) -> None:
        """Send the prompts, and feed their answers."""
        self.push([Open(0.0, 1, {"peer": "client"})])
        await self._ask(self._prompts)

    async def _generate(self, asked: GenerateRequest) -> str:
        return (await self._ask([asked]))[0]

    async def _ask(self, prompts: Sequence[GenerateRequest]) -> list[str]:
        running = asyncio.create_task(self._server.run(self._collected.extend)) if not self._collected else None
        requests = self._server._requests
        assert requests is not None
        labels = [await requests.generate(prompt) for prompt in prompts]
        await requests.until_ended()
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        self.push(list(self._steady()))
        return labels

    def _steady(self) -> Iterator[Event]:
        """What was collected: vocabulary, requests, then a token of each stream in turn."""
        collected, self._collected[:] = list(self._collected), [Open(0.0, 1, {})]
        for event in collected:
            if isinstance(event, Frame) and event.direction == "<":
                yield from self._described(event)
        vocabulary = {
            id_: text for event in collected if isinstance(event, Vocab) for id_, text in event.tokens.items()
        }
        yield Vocab(self._time, 0, dict(sorted(vocabulary.items())))
        for event in collected:
            if isinstance(event, Frame) and event.direction == ">" and event.command == "GENERATE":
                self._time += STEP
                yield Frame(self._time, ">", 1, event.content)
        entries: dict[object, list[Entry]] = {}
        for event in collected:
            for entry in token_entries(event):
                entries.setdefault(entry["stream_id"], []).append(entry)
        for turn in zip_longest(*(entries[stream] for stream in sorted(entries, key=str))):
            for entry in filter(None, turn):
                self._time += STEP
                yield Frame(self._time, "<", 1, JsonText("TOKEN", [entry], "py"))

    def _described(self, event: Frame) -> Iterator[Event]:
        """What an answer says of the model, without what differs from machine to machine."""
        for entry in event.answer()[1]:
            if event.command == "MSG" and isinstance(info := entry.get("model_info"), dict):
                facts = {name: info[name] for name in FACTS}
                yield Frame(self._time, "<", 1, JsonText("MSG", [{"stream_id": 1, "model_info": facts}], "py"))

    async def close(self) -> None:
        """Close the connection."""
        await self._server.close()


async def inspected(
    url: str, prompts: Sequence[str], sampling: SamplingParams, size: tuple[int, int], keys: Sequence[str]
) -> str:
    """The inspector after these prompts were answered and these keys pressed."""
    source, lines = SteadySource(url, racing(prompts, sampling)), EventStore()
    app = InspectorApp(lines, source, InspectorOptions(tips=False))  # type: ignore[arg-type] # as a `Source`
    app.animation_level = "none"
    try:
        async with app.run_test(size=size) as pilot:
            seen = Watched(app, pilot, source)
            await seen.settle()
            await source.answer()
            for key in ("", *keys):
                streams = len(app.view.state.streams)
                if key:
                    await seen.press({"=": "equals_sign"}.get(key, key))
                while key == "b" and len(app.view.state.streams) == streams:
                    await pilot.pause(0.02)
                await seen.settle()
            app.message = None
            await seen.settle()
            return picture(app)
    finally:
        await source.close()
        lines.close()


async def draw(url: str) -> Mapping[str, str]:
    """All pictures, of a server of the included model."""
    drawn = {"four_streams": await asyncio.to_thread(four_streams, url)}
    for name, (prompts, sampling, size, keys) in INSPECTED.items():
        drawn[name] = await inspected(url, prompts, sampling, size, keys)
    return drawn


async def _main() -> None:
    os.environ.pop("NO_COLOR", None)
    async with api.serve() as server:
        for name, svg in (await draw(server.url)).items():
            (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(_main())
