"""The tour: steps that go on when they were really done, by whatever means, and are kept for the next time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.cells import cell_len

from lmtool.cli.inspect_servers import find_tokenizer
from lmtool.core.errors import FileError
from lmtool.terminal.tui.event_store import EventStore
from lmtool.terminal.tui.options import InspectorOptions
from lmtool.terminal.tui.sources.connect import ConnectSource
from lmtool.terminal.tui.tour import SKIP, TourApp
from lmtool.terminal.tui.tour_steps import STEPS, Progress, tour_file, words
from lmtool.terminal.tui.widgets import target_at
from tests.terminal.tui.scripted import Scripted, Watched, event, request, tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lmtool.core.types import GenerateRequest
    from lmtool.terminal.tui.sources.source import Source
    from lmtool.terminal.tui.widgets import LinePane

IDS = [step.id for step in STEPS]
SIZES = ((80, 24), (60, 20))
PATIENCE = 30.0


class Answering(Scripted):
    """Answers each request at once with nine tokens, the fifth of them the least likely one; the stream ends."""

    async def _generate(self, asked: GenerateRequest) -> str:
        self.requests.append(asked)
        number = 10 + len(self.requests)
        answer = [(number, 8, -5.0 if place == 4 else -0.2) for place in range(9)]
        self.push([request(number / 10, number), tokens(number / 10 + 0.05, *answer, end="stop")])
        return f"1/{number}"


class Tour(Watched):
    """The tour while it runs."""

    app: TourApp

    @property
    def step(self) -> str:
        """Id of the step that it waits for; empty at the end."""
        step = self.app.progress.step
        return "" if step is None else step.id

    async def until(self, step: str) -> None:
        """Wait for a step to begin."""
        async with asyncio.timeout(PATIENCE):
            while self.step != step:
                await self.pilot.pause(0.02)
        await self.settle()

    async def click_target(self, pane: LinePane, target: int) -> None:
        """Click on what means this, such as the row of a token."""
        for y in range(pane.size.height):
            line = pane._line(y)
            for x in range(pane.size.width):
                if target_at(list(line), x) == target:
                    await self.pilot.click(pane, offset=(x + pane.gutter.left, y + pane.gutter.top))
                    await self.settle()
                    return
        pytest.fail(f"nothing means {target}")


@asynccontextmanager
async def touring(
    folder: Path,
    source: Source | Scripted | None = None,
    options: InspectorOptions | None = None,
    *,
    size: tuple[int, int] = (120, 36),
    restart: bool = False,
) -> AsyncIterator[Tour]:
    """The tour on a source, with its place kept in this folder. Raises what made the app fail."""
    source = source or Answering([event(0.0, "vocab", 0, {"8": " fox", "9": ".", "13": " dog"})])
    lines = EventStore()
    progress = Progress(folder / "tour", restart=restart)
    app = TourApp(lines, source, options or InspectorOptions(tips=False), progress=progress)  # type: ignore[arg-type] # as a `Source`
    try:
        async with app.run_test(size=size) as pilot:
            tour = Tour(app, pilot, source)  # type: ignore[arg-type] # whichever
            await tour.settle()
            yield tour
    finally:
        await source.close()
        lines.close()
    if app.failure is not None:
        raise app.failure


async def play(tour: Tour, last: str = "") -> None:
    """Do what each step says, with the keys that it names, up to this step."""
    keys = {"go_on": "pause", "jump": "least_likely", "alternatives": "pane_3", "choose": "up", "run": "demo"}
    while tour.step != last:
        step = tour.step
        sign = tour.app.keys.sign(keys.get(step, step)) if step != "look" else "escape"
        await tour.press({"=": "equals_sign"}.get(sign, sign))
        if step == "choose" and tour.step == step:  # there is no bar above the one that was drawn
            await tour.press(tour.app.keys.sign("down"))
        async with asyncio.timeout(PATIENCE):
            while tour.step == step:
                await tour.pilot.pause(0.02)
        await tour.settle()


class TestByDoing:
    """A step is over when it was done."""

    async def test_the_whole_tour_on_the_real_model(self, embedded: str, tmp_path: Path) -> None:
        """From the empty screen to the comparison of a branch with its origin, each with the key that it names."""
        source = ConnectSource(embedded, pytest.fail, find_tokenizer=find_tokenizer)
        async with touring(tmp_path, source, size=(80, 24)) as tour:
            async with asyncio.timeout(PATIENCE):
                while "Press d" not in tour.text():
                    await tour.settle()
            await play(tour, "alternatives")
            view = tour.app.view
            assert view.row is not None
            assert f"The cursor is on {view.measures.quote_token(view.row)}" in tour.text()
            await play(tour, "look")
            assert "tokens, then" in tour.text()
            assert len(tour.app.branches.branches) == 1
            assert "Press esc to close this." in tour.text()
            await play(tour)
            assert "That was the tour." in tour.text()
            assert not (tmp_path / "tour").exists()

    async def test_something_else(self, tmp_path: Path) -> None:
        """A key that does something else does it, and is named with what the tour waits for; so is one without use."""
        async with touring(tmp_path) as tour:
            await tour.press("c")
            assert tour.app.view.heat == "surprisal"
            assert (
                "c: colour by: probability, surprisal, entropy, rank, gap, stream; the tour waits for d" in tour.text()
            )
            await tour.press("M")
            assert "M has no meaning here; the tour waits for d" in tour.text()
            await tour.press("u")  # what an action says itself stays
            assert "u: this stream has no logprobs; the tour waits for d" in " ".join(tour.text().split())
            assert tour.step == "run"
            await play(tour, "choose")
            await tour.press("l")
            assert "l: to the next token of the same stream; the tour waits for j or k" in tour.text()
            await play(tour)
            await tour.press("c")
            assert "the tour waits" not in tour.text()

    async def test_by_the_list_of_actions(self, tmp_path: Path) -> None:
        """What `?` runs counts as well; while the list is open, the tour says how to close it."""
        async with touring(tmp_path, size=(80, 24)) as tour:
            await play(tour, "pause")
            await tour.press("question_mark")
            assert "(esc closes what is open.)" in " ".join(tour.text().split())
            await tour.press(*"freeze", "enter")
            assert tour.app.view.paused
            assert tour.step == "go_on"

    async def test_by_the_mouse(self, tmp_path: Path) -> None:
        """Clicks on keys, tokens, panes and bars count as well."""
        async with touring(tmp_path, size=(140, 40)) as tour:
            main = tour.app.main
            for step in ("pause", "go_on"):
                await play(tour, step)
                tour.app.message = None
                await tour.settle()
                place = tour.rows()[-1].index("space")
                await tour.pilot.click(main.footer, offset=(place, 0))
                await tour.settle()
            assert tour.step == "jump"
            stream = tour.app.view.current
            assert stream is not None
            await tour.click_target(main.panes["tokens"], stream.rows[4])
            await tour.until("alternatives")
            await tour.pilot.click(main.panes["detail"], offset=(3, 1))
            await tour.until("choose")
            await tour.click_target(main.panes["detail"], 1)
            await tour.until("branch")
            await tour.click_target(main.panes["detail"], 1)  # a second click on a bar branches
            await tour.until("compare")

    async def test_a_step_that_was_done_before_is_not_asked_for(self, tmp_path: Path) -> None:
        """Who has opened the token's pane already is not told to."""
        async with touring(tmp_path) as tour:
            await tour.press("3")
            await play(tour, "jump")
            await tour.press("u")
            await tour.until("choose")

    async def test_what_is_no_way_on(self, tmp_path: Path) -> None:
        """Another token is not the least likely one, and the bar that was drawn is no other token."""
        async with touring(tmp_path) as tour:
            await play(tour, "jump")
            await tour.press("h")
            assert tour.app.view.row is not None
            assert tour.step == "jump"
            await play(tour, "choose")
            view = tour.app.view
            assert view.row is not None
            names = [name for name, _ in view.measures.alternatives(view.row)]
            view.bar = names.index(view.measures.name(view.row))
            await tour.settle()
            tour.app.follow()
            assert tour.step == "choose"


class TestSkipping:
    """A step can be left to the tour."""

    async def test_everything_is_skipped(self, tmp_path: Path) -> None:
        """The tour does what later steps need: streams, the jump, the branch; it ends without a comparison."""
        async with touring(tmp_path) as tour:
            for _ in STEPS:
                step = tour.step
                if not step:
                    break
                await tour.press("p")
                async with asyncio.timeout(PATIENCE):
                    while tour.step == step:
                        await tour.pilot.pause(0.02)
            assert tour.step == ""
            assert len(tour.app.branches.branches) == 1
            assert not (tmp_path / "tour").exists()

    async def test_what_cannot_be_done_is_left_out(self, tmp_path: Path) -> None:
        """Where the tour cannot do a step, it says that it waits, and skipping again leaves it out."""
        async with touring(tmp_path, Scripted(asks=False)) as tour:
            assert "is being loaded" in tour.text()
            await tour.press("p")
            assert tour.step == "run"
            assert "This step is done for you, as soon as it can be; p again leaves it out." in tour.text()
            await tour.press("p")
            assert tour.step == "pause"

    async def test_keys_of_the_user(self, tmp_path: Path) -> None:
        """All keys are those of the settings; one that is taken from the tour leaves it its next one."""
        keys = {"demo": "X", "pause": "p,o", "branch": ""}
        async with touring(tmp_path, options=InspectorOptions(keys=keys)) as tour:
            assert "Press X: four prompts" in tour.text()
            assert "f9 skips" in tour.text()
            await tour.press("X")
            await tour.until("pause")
            assert "Press p to stop the screen" in tour.text() or "press p while they run" in tour.text()
            await play(tour, "branch")
            assert "Press ? Branch: a new stream" in tour.text()
            await tour.press("f9")
            await tour.until("compare")


class TestLeaving:
    """The tour goes on where it was left."""

    @pytest.mark.parametrize("step", ["choose", "branch", "look"])
    async def test_going_on(self, step: str, tmp_path: Path) -> None:
        """What was done before is done again by the tour: streams, cursor, branch; a comparison is to be opened."""
        last = "compare" if step == "look" else step
        async with touring(tmp_path) as tour:
            await play(tour, step)
            assert (tmp_path / "tour").read_text() == f"{last}\n"
            await tour.app.action_quit()
        async with touring(tmp_path) as tour:
            await tour.until(last)
            view = tour.app.view
            assert len(view.state.streams) == (4 if IDS.index(last) < IDS.index("compare") else 5)
            if last in ("alternatives", "choose", "branch"):
                assert view.row is not None
                assert view.position(view.row) == 4

    async def test_what_was_paused_runs_anew(self, tmp_path: Path) -> None:
        """A pause cannot be kept: who left in one finds something new to pause."""
        async with touring(tmp_path) as tour:
            await play(tour, "go_on")
        async with touring(tmp_path) as tour:
            await tour.until("pause")
            assert len(tour.app.view.state.streams) == 4

    async def test_restart(self, tmp_path: Path) -> None:
        """It begins anew, also the next time."""
        (tmp_path / "tour").write_text("branch\n")
        async with touring(tmp_path, restart=True) as tour:
            assert (tour.step, tour.app.progress.is_performing) == ("run", False)
        assert Progress(tmp_path / "tour").target == 0

    def test_what_the_file_says(self, tmp_path: Path) -> None:
        """A step that there is not, or anything else, is the beginning; a file that cannot be read is an error."""
        file = tmp_path / "tour"
        for text in ("nothing\n", "", "branch" * 1000, "\udcff"):
            file.write_text(text, errors="surrogateescape")
            assert Progress(file).target == 0
        with pytest.raises(FileError, match="cannot read"):
            Progress(tmp_path)
        assert tour_file().name == "tour"

    async def test_a_place_that_cannot_be_kept(self, tmp_path: Path) -> None:
        """It is said, and the tour goes on."""
        (tmp_path / "file").touch()
        async with touring(tmp_path) as tour:
            tour.app.progress._file = tmp_path / "file" / "tour"
            await tour.press("d")
            await tour.until("pause")
            assert "it begins anew next time" in " ".join(tour.text().split())


class TestScreen:
    """What stands above the panes."""

    @pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
    async def test_every_step_fits(self, size: tuple[int, int], tmp_path: Path) -> None:
        """At each size the whole text is there, with its key, the tour's own keys, and something of the panes."""
        async with touring(tmp_path, size=size) as tour:
            while tour.step:
                spoken = "".join(run.text for word in words(tour.app, tour.app._text()) for run in word)
                rows = tour.rows()
                height = 4 if size[0] < 70 else 3
                assert "".join("".join(rows[1:height]).split()) == "".join(spoken.split())
                assert (
                    f"Tour {IDS.index(tour.step) + 1} of {len(STEPS)}: {STEPS[IDS.index(tour.step)].title}" in rows[0]
                )
                assert ("p skips" in rows[0]) is ("q leaves" in rows[0]) is (tour.step != "look")
                assert len(rows) == size[1]
                assert max(map(cell_len, rows)) <= size[0]
                for columns in (160, 120, 100, 70, 60):
                    drawn = "".join(run.text for line in tour.app.tour_lines(columns)[1:] for run in line)
                    assert "".join(drawn.split()) == "".join(spoken.split())
                await play(tour, (*IDS, "")[IDS.index(tour.step) + 1])
            assert "That was the tour." in tour.text()

    @pytest.mark.parametrize("size", [(100, 24), (60, 20)], ids=lambda size: f"{size[0]}x{size[1]}")
    async def test_what_opens_stays_below_it(self, size: tuple[int, int], tmp_path: Path) -> None:
        """The comparison, the list and a question leave the tour's lines in sight."""
        async with touring(tmp_path, size=size) as tour:
            for key in ("question_mark", "f1", "i"):
                await tour.press(key)
                assert tour.app.screen is not tour.app.main
                assert tour.rows()[0].startswith(" Tour 1 of 9")
                assert "esc closes what is" in " ".join(" ".join(tour.rows()[: 4 if size[0] < 70 else 3]).split())
                await tour.press("escape")

    @pytest.mark.parametrize("options", [{"color": False}, {"ascii": True}, {"theme": "textual-light"}], ids=str)
    async def test_looks(self, options: dict[str, object], tmp_path: Path) -> None:
        """Without colours keys are bold; in ASCII nothing else is drawn; in a light theme all can be read."""
        async with touring(tmp_path, options=InspectorOptions(tips=False, **options)) as tour:  # type: ignore[arg-type]
            await play(tour, "choose")
            assert "cursor " in tour.text()
            if "ascii" in options:
                assert "".join(tour.rows()[:3]).isascii()
                assert "< marks the one that was drawn" in tour.text()
            bar = tour.app.main.query_one("#tour")
            strip = bar.render_line(1)
            keys = [segment for segment in strip if segment.text in ("j", "k")]
            assert len(keys) == 2
            assert all(segment.style is not None and segment.style.bold for segment in keys)

    async def test_a_look_while_the_app_ends(self, tmp_path: Path) -> None:
        """Screens go before timers: a look between the two finds none, and does nothing."""
        async with touring(tmp_path) as tour:
            step = tour.step
        assert not tour.app.screen_stack
        tour.app.follow()
        assert tour.step == step

    def test_the_tours_own_action_is_free(self) -> None:
        """No action of the inspector has its keys."""
        from lmtool.terminal.tui.keymap import ACTIONS

        assert not {key for action in ACTIONS for key in action.keys} & set(SKIP.keys)
