"""What is seen of a `State`: the moment, the cursor, the filter, the colours. Every key is a method here."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.tui.facts import StreamFacts
from lmtool.tui.heat import MODES, HeatMode, Palette
from lmtool.tui.lines import NoLines
from lmtool.tui.measures import Measures
from lmtool.tui.sieve import Sieve

if TYPE_CHECKING:
    from lmtool.logprobs.distribution import Distribution, Rank
    from lmtool.trace.filter import Filter
    from lmtool.trace.stream_events import Alternative
    from lmtool.tui.lines import Lines
    from lmtool.tui.state import State
    from lmtool.tui.streams import Stream

Mode: TypeAlias = Literal["interleaved", "split", "text", "table"]
VIEWS: tuple[Mode, ...] = ("interleaved", "split", "text", "table")
SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
THRESHOLDS = (2.0, 4.0, 6.0, 8.0, 10.0, 13.0)
"""Bits from which on a token is surprising."""


@dataclass(slots=True)
class View:
    """A way to look at a state. `moment` None means now: the view follows what comes.

    A file is played by moving `moment` on (`tick`); a pause holds it while the state goes on growing.
    """

    state: State
    lines: Lines = field(default_factory=NoLines)
    live: bool = True
    moment: float | None = None
    playing: bool = True
    speed: float = 1.0
    heat: HeatMode = "prob"
    palette: Palette = "blue-orange"
    mode: Mode = "interleaved"
    threshold: float = 4.0
    invisible: bool = False
    """Whether blanks are shown as signs."""
    filter: Filter | None = None
    followed: int | None = None
    """The only stream whose tokens are shown."""
    stream: int = 0
    """The stream under the cursor."""
    row: int | None = None
    """The token under the cursor, a row of the log; None: the last one of what is shown."""
    frame: int | None = None
    """The frame under the cursor; None: the one of the token."""
    bar: int = 0
    """The alternative under the cursor, 0 the best."""
    marked: list[int] = field(default_factory=list)
    """Streams to compare."""
    places: list[float] = field(default_factory=list)
    """Marked moments of the user's own."""
    measures: Measures = field(init=False)
    """Of the tokens of the state."""
    _sieve: Sieve | None = None

    def __post_init__(self) -> None:
        self.measures = Measures(self.state, self.lines)

    # Time.

    @property
    def seen(self) -> int:
        """How many tokens of the log are seen."""
        return self.state.tokens_at(self.moment)

    @property
    def time(self) -> float:
        """The moment that is seen, in seconds of the trace."""
        return self.state.now if self.moment is None else self.moment

    @property
    def held_back(self) -> int:
        """Tokens that came since the view was paused."""
        return len(self.state.tokens) - self.seen if self.moment is not None else 0

    def pause(self) -> None:
        """Hold the view where it is, or go on."""
        if self.live:
            self.moment = self.state.now if self.moment is None else None
            return
        if self.moment is None:
            self.moment, self.playing = 0.0, True  # from the end it starts again
        else:
            self.playing = not self.playing

    @property
    def paused(self) -> bool:
        """Whether the view stands still."""
        return self.moment is not None and (self.live or not self.playing)

    def tick(self, seconds: float) -> None:
        """So much time has passed on the user's clock: play on."""
        if self.live or not self.playing or self.moment is None:
            return
        self.moment += seconds * self.speed
        if self.moment >= self.state.now:
            self.moment = None

    def seek(self, moment: float) -> None:
        """Look at another moment; behind the end of a file or of what is live means the end."""
        moment = max(0.0, moment)
        if moment >= self.state.now:
            self.moment = None
            return
        if self.live or self.moment is None:
            self.playing = False
        self.moment = moment
        self._forget_what_is_not_seen()

    def step_time(self, seconds: float) -> None:
        """So many seconds on, or back."""
        self.seek(self.time + seconds)

    def step_frame(self, frames: int) -> None:
        """To the frame after the last one that is seen, or to the one before."""
        times = self.state.frames.times
        here = bisect_right(times, self.time) - 1
        there = here
        while 0 <= there + (1 if frames > 0 else -1) < len(times):
            there += 1 if frames > 0 else -1
            if times[there] != times[here]:
                break
        if 0 <= there < len(times):
            self.seek(times[there])

    def faster(self, steps: int) -> None:
        """Play faster, or slower for less than 0."""
        place = bisect_left(SPEEDS, self.speed)
        self.speed = SPEEDS[min(len(SPEEDS) - 1, max(0, place + steps))]

    # Streams.

    def streams(self) -> list[Stream]:
        """Those that the table shows: begun by now and let through by the filter."""
        moment = self.time
        found = [s for s in self.state.streams if s.began <= moment]
        if self.filter is None:
            return found
        seen = self.seen
        return [s for s in found if self.filter.stream(StreamFacts(s, s.phase(moment, seen)))]

    @property
    def current(self) -> Stream | None:
        """The stream under the cursor."""
        streams = self.state.streams
        return streams[self.stream] if self.stream < len(streams) else None

    def move_stream(self, steps: int) -> None:
        """The cursor of the table: so many streams down."""
        listed = [s.index for s in self.streams()]
        if not listed:
            return
        place = listed.index(self.stream) if self.stream in listed else 0
        self.choose_stream(listed[min(len(listed) - 1, max(0, place + steps))])

    def choose_stream(self, index: int) -> None:
        """Look at this stream, at its last token."""
        self.stream = index
        self.row = self.frame = None
        self.bar = 0

    def follow_stream(self) -> None:
        """Show the tokens of this stream only, or of all again."""
        self.followed = None if self.current is None or self.followed == self.stream else self.stream
        self.set_filter(self.filter)

    def mark_stream(self) -> None:
        """Mark the stream for a comparison, or take the mark away; the last two count."""
        if self.stream in self.marked:
            self.marked.remove(self.stream)
        else:
            self.marked = [*self.marked, self.stream][-2:]

    # Tokens.

    def shown(self) -> array[int] | range:
        """Rows of the tokens that the interleaved view shows, in order."""
        seen = self.seen
        if self.filter is None:
            if self.followed is None:
                return range(seen)
            stream = self.state.streams[self.followed]
            return stream.rows[: stream.count(seen)]
        if self._sieve is None:
            self._sieve = Sieve(self.filter, self.followed, self.measures)
        return self._sieve.rows(seen)

    def look_on(self) -> bool:
        """Filter more of what was received; whether there is more to do. Call it between drawings."""
        return self._sieve is not None and self._sieve.go_on()

    def set_filter(self, wanted: Filter | None) -> None:
        """Show what this lets through; None: everything."""
        self.filter = wanted if wanted is not None and wanted.source.strip() else None
        self._sieve = None if self.filter is None else Sieve(self.filter, self.followed, self.measures)
        self.look_on()

    @property
    def token(self) -> int | None:
        """Row of the token under the cursor; without one the last of the stream under the cursor."""
        seen = self.seen
        if self.row is not None and self.row < seen:
            return self.row
        stream = self.current
        count = stream.count(seen) if stream is not None else 0
        return stream.rows[count - 1] if stream is not None and count else None

    def position(self, row: int) -> int:
        """Place of a token in its stream, from 0."""
        return bisect_left(self.state.streams[self.state.tokens.streams[row]].rows, row)

    def choose_token(self, row: int) -> None:
        """Put the cursor on a token."""
        self.row, self.frame, self.bar = row, None, 0
        self.stream = self.state.tokens.streams[row]

    def move_token(self, steps: int) -> None:
        """So many tokens on in the stream under the cursor."""
        stream, row = self.current, self.token
        if stream is None or row is None:
            return
        count = stream.count(self.seen)
        place = bisect_left(stream.rows, row) + steps
        if place >= count:
            self.end()
        else:
            self.choose_token(stream.rows[max(0, place)])

    def move_row(self, steps: int) -> None:
        """So many tokens down in what the interleaved view shows."""
        shown = self.shown()
        if not len(shown):
            return
        here = self.row if self.row is not None else shown[-1]
        place = bisect_left(shown, here) + steps
        if place >= len(shown):
            self.end()
        else:
            self.choose_token(shown[max(0, place)])

    def surprising(self, direction: int) -> bool:
        """To the next token (or, for -1, the one before) that is surprising; whether there was one."""
        stream, row, tokens = self.current, self.token, self.state.tokens
        if stream is None or row is None:
            return False
        limit = -self.threshold * math.log(2)
        count = stream.count(self.seen)
        place = bisect_left(stream.rows, row) + direction
        while 0 <= place < count:
            if tokens.logprobs[stream.rows[place]] < limit:
                self.choose_token(stream.rows[place])
                return True
            place += direction
        return False

    def least_likely(self) -> bool:
        """To the least likely token of the stream under the cursor; whether there is one with a logprob."""
        stream, tokens = self.current, self.state.tokens
        rows = stream.rows[: stream.count(self.seen)] if stream is not None else array("i")
        known = [row for row in rows if not math.isnan(tokens.logprobs[row])]
        if known:
            self.choose_token(min(known, key=tokens.logprobs.__getitem__))
        return bool(known)

    def first(self) -> None:
        """To the first token shown."""
        shown = self.shown()
        if len(shown):
            self.choose_token(shown[0])

    def end(self) -> None:
        """To the last token, and go along with what comes."""
        self.row = self.frame = None
        self.bar = 0

    @property
    def new(self) -> int:
        """Tokens shown below the cursor, while it does not go along."""
        if self.row is None:
            return 0
        shown = self.shown()
        return len(shown) - bisect_right(shown, self.row)

    # Alternatives.

    def alternatives(self, row: int) -> tuple[Alternative, ...]:
        """A token and what it came beside, best first; empty where it came alone, or its frame cannot be read again."""
        return self.measures.alternatives(row)

    def distribution(self, row: int) -> Distribution[int | str | bytes]:
        """What is known of the distribution that a token was chosen from."""
        return self.measures.distribution(row)

    def rank(self, row: int) -> Rank | None:
        """Rank of a token, or the least that it can be; None where nothing is known of it."""
        return self.measures.rank(row)

    def name(self, row: int) -> int | str | bytes:
        """What a token is called among alternatives: its id, or its text or bytes where there are no ids."""
        return self.measures.name(row)

    def move_bar(self, steps: int) -> None:
        """The cursor among the alternatives: so many down."""
        row = self.token
        most = len(self.alternatives(row)) - 1 if row is not None else 0
        self.bar = min(max(0, most), max(0, self.bar + steps))

    def entropy(self, row: int) -> tuple[float, float] | None:
        """Bounds of a token's entropy in bits."""
        return self.measures.entropy(row)

    def gap(self, row: int) -> float | None:
        """Milliseconds between a token and the stream's token before it; None for the first."""
        return self.measures.gap(row)

    def measure(self, row: int) -> float | None:
        """Value of a token under the heat mode."""
        return self.measures.of(row, self.heat)

    def style(self, row: int) -> str:
        """Name of a token's style."""
        return self.measures.style(row, self.heat)

    # Frames.

    @property
    def frame_now(self) -> int | None:
        """The frame under the cursor: chosen, or the one that brought the token."""
        if self.frame is not None:
            return self.frame
        row = self.token
        if row is not None:
            return self.state.tokens.frames[row]
        count = self.state.frames.until(self.time)
        return count - 1 if count else None

    def choose_frame(self, frame: int) -> None:
        """Put the cursor on a frame, and on the first token it brought."""
        rows = self.state.tokens_of_frame(frame)
        if len(rows):
            self.choose_token(rows[0])
        self.frame = frame

    def move_frame(self, steps: int) -> None:
        """So many frames down."""
        count = self.state.frames.until(self.time)
        if count:
            here = self.frame_now
            self.choose_frame(min(count - 1, max(0, (count - 1 if here is None else here) + steps)))

    # Looks.

    def next_heat(self) -> None:
        """The next heat mode."""
        self.heat = MODES[(MODES.index(self.heat) + 1) % len(MODES)]

    def next_mode(self) -> None:
        """The next way to show tokens."""
        self.mode = VIEWS[(VIEWS.index(self.mode) + 1) % len(VIEWS)]

    def next_threshold(self) -> None:
        """The next number of bits that counts as surprising."""
        later = [t for t in THRESHOLDS if t > self.threshold]
        self.threshold = later[0] if later else THRESHOLDS[0]

    def mark_place(self) -> None:
        """Remember this moment."""
        self.places = sorted({*self.places, round(self.time, 6)})

    def next_place(self) -> float | None:
        """To the next marked moment, the trace's own marks among them, around from the last to the first."""
        known = sorted({*self.places, *(round(mark.time, 6) for mark in self.state.marks)})
        if not known:
            return None
        later = [place for place in known if place > self.time + 1e-6]
        there = later[0] if later else known[0]
        self.seek(there)
        return there

    def _forget_what_is_not_seen(self) -> None:
        if self.row is not None and self.row >= self.seen:
            self.row = self.frame = None
