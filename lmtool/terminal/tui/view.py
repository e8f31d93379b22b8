"""The visible part of a `State`: moment, cursor, filter, colours."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

from lmtool.core.logprobs.heat import MODES, UPPER, HeatMode, Palette
from lmtool.terminal.tui.event_store import NoLines
from lmtool.terminal.tui.measures import Measures, StreamFacts, TokenFilter
from lmtool.terminal.tui.options import Mode

if TYPE_CHECKING:
    from array import array

    from lmtool.terminal.tui.event_store import Lines
    from lmtool.terminal.tui.measures import Uncertainty
    from lmtool.terminal.tui.state import State
    from lmtool.terminal.tui.streams import Stream
    from lmtool.trace.filter import Filter

VIEWS: tuple[Mode, ...] = get_args(Mode)
SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
LOOKED_AT = 2000
"""Tokens whose alternatives are read for one key."""
THRESHOLDS = UPPER["surprisal"][1:]
"""Bits from which on a token is surprising."""


@dataclass(slots=True)
class View:
    """A view of a state. `moment` None is now: the view follows new tokens.

    A file is played by moving `moment` on (`tick`); a pause holds it while the state goes on growing.
    """

    state: State
    lines: Lines = field(default_factory=NoLines)
    live: bool = True
    moment: float | None = None
    """Seconds of the trace."""
    playing: bool = True
    speed: float = 1.0
    heat: HeatMode = "prob"
    palette: Palette = "blue-orange"
    mode: Mode = "split"
    threshold: float = 4.0
    show_blanks: bool = False
    """True if blanks are shown as signs."""
    filter: Filter | None = None
    followed_stream: int | None = None
    """The only stream whose tokens are shown; None for all."""
    stream: int = 0
    """The stream under the cursor."""
    row: int | None = None
    """Row of the token under the cursor; None follows the last visible one."""
    frame: int | None = None
    """The frame under the cursor; None for the frame of the token."""
    bar: int = 0
    """The alternative under the cursor, 0 the best."""
    stream_marks: list[int] = field(default_factory=list)
    """Streams to compare."""
    time_marks: list[float] = field(default_factory=list)
    """Moments that the user marked."""
    measures: Measures = field(init=False)
    """Measures of the tokens of the state."""
    branch_tokens: dict[str, str] = field(default_factory=dict)
    """By label of a branch, text of the token that it begins with, at the end of its prompt."""
    from_beginning: bool = False
    """True if ended streams are shown from their beginning, until cursor or moment move."""
    uncertainty: Uncertainty = "surprisal"
    """Measure that `uncertain` uses."""
    _uncertain: tuple[int | None, int] = (None, 0)
    """Row that `uncertain` moved to last, and its rank."""
    _token_filter: TokenFilter | None = None

    def __post_init__(self) -> None:
        self.measures = Measures(self.state, self.lines)

    # Time.

    @property
    def token_count(self) -> int:
        """Tokens of the log up to the moment."""
        return self.state.tokens_at(self.moment)

    @property
    def time(self) -> float:
        """The moment in seconds of the trace."""
        return self.state.now if self.moment is None else self.moment

    @property
    def hidden_count(self) -> int:
        """Tokens that arrived after the moment."""
        return len(self.state.tokens) - self.token_count if self.moment is not None else 0

    def pause(self) -> None:
        """Pause the view, or resume."""
        self.from_beginning = False
        if self.live:
            self.moment = self.state.now if self.moment is None else None
        elif self.moment is None:
            self.moment, self.playing = 0.0, True  # from the end it starts again
        else:
            self.playing = not self.playing

    @property
    def paused(self) -> bool:
        """True if the view does not follow time."""
        return self.moment is not None and (self.live or not self.playing)

    def tick(self, seconds: float) -> None:
        """Play on by these seconds of the user's clock."""
        if self.live or not self.playing or self.moment is None:
            return
        self.moment += seconds * self.speed
        if self.moment >= self.state.now:
            self.moment = None

    def seek(self, moment: float) -> None:
        """Show another moment; after the end it is the end."""
        moment, self.from_beginning = max(0.0, moment), False
        if moment >= self.state.now:
            self.moment = None
            return
        if self.live or self.moment is None:
            self.playing = False
        self.moment = moment
        if self.row is not None and self.row >= self.token_count:
            self.row = self.frame = None

    def step_time(self, seconds: float) -> None:
        """Move on by these seconds, or back."""
        self.seek(self.time + seconds)

    def step_frame(self, direction: int) -> None:
        """Move to the moment of the next frame, or for -1 of the previous one."""
        times = self.state.frames.times
        here = bisect_right(times, self.time) - 1
        there = here
        while 0 <= there + direction < len(times):
            there += direction
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
        """Streams of the table: begun by the moment, and matching the filter."""
        moment, tokens = self.time, self.token_count
        begun = [s for s in self.state.streams if s.started_at <= moment]
        if self.filter is None:
            return begun
        return [s for s in begun if self.filter.stream(StreamFacts(s, s.phase(moment, tokens)))]

    @property
    def current(self) -> Stream | None:
        """The stream under the cursor."""
        streams = self.state.streams
        return streams[self.stream] if self.stream < len(streams) else None

    def keep_to_filter(self) -> None:
        """Move the cursor to the first matching stream if the current one does not match."""
        if self.filter is None:
            return
        listed = [stream.index for stream in self.streams()]
        if listed and self.stream not in listed:
            self.choose_stream(listed[0])

    def move_stream(self, steps: int) -> None:
        """The cursor of the table down."""
        indices = [s.index for s in self.streams()]
        if indices:
            place = indices.index(self.stream) if self.stream in indices else 0
            self.choose_stream(indices[min(len(indices) - 1, max(0, place + steps))])

    def choose_stream(self, index: int) -> None:
        """Look at this stream, at its last token."""
        self.stream, self.row, self.frame, self.bar = index, None, None, 0

    def begins(self, stream: Stream) -> bool:
        """True if the beginning of a stream is shown, not its end."""
        return self.from_beginning and stream.ended is not None and stream.ended <= self.time

    def follow_stream(self) -> None:
        """Toggle between the tokens of the current stream and of all."""
        if self.current is not None:
            self.followed_stream = None if self.followed_stream == self.stream else self.stream

    def mark_stream(self) -> None:
        """Mark the stream for a comparison, or take the mark away; the last two count."""
        if self.stream in self.stream_marks:
            self.stream_marks.remove(self.stream)
        else:
            self.stream_marks = [*self.stream_marks, self.stream][-2:]

    # Tokens.

    def token_rows(self) -> array[int] | range:
        """Rows of the interleaved view, in order."""
        tokens = self.token_count
        if self._token_filter is not None:
            return self._token_filter.rows(tokens, self.followed_stream)
        if self.followed_stream is None:
            return range(tokens)
        return self.rows_of(self.state.streams[self.followed_stream])

    def rows_of(self, stream: Stream) -> array[int]:
        """Rows of the matching tokens of a stream, in order."""
        tokens = self.token_count
        if self._token_filter is not None:
            return self._token_filter.rows(tokens, stream.index)
        count = stream.count(tokens)
        return stream.rows if count == len(stream.rows) else stream.rows[:count]

    def passes(self, row: int) -> bool:
        """True if a token matches the filter."""
        return self._token_filter is None or self._token_filter.passes(row)

    def filter_more(self) -> bool:
        """Filter more tokens; True if some are left. Call it between drawings."""
        return self._token_filter is not None and self._token_filter.filter_more()

    def set_filter(self, new: Filter | None) -> None:
        """Show streams and tokens that match; None shows everything."""
        self.filter = new if new is not None and new.source.strip() else None
        self._token_filter = None if self.filter is None else TokenFilter(self.filter, self.measures)
        self.filter_more()

    @property
    def token(self) -> int | None:
        """Row of the token under the cursor; without one the last of the stream under the cursor."""
        tokens = self.token_count
        if self.row is not None and self.row < tokens:
            return self.row
        stream = self.current
        count = stream.count(tokens) if stream is not None else 0
        return stream.rows[count - 1] if stream is not None and count else None

    def position(self, row: int) -> int:
        """Place of a token in its stream, from 0."""
        return bisect_left(self.state.stream_of(row).rows, row)

    def choose_token(self, row: int) -> None:
        """Put the cursor on a token."""
        self.row, self.frame, self.bar, self.from_beginning = row, None, 0, False
        self.stream = self.state.tokens.streams[row]

    def move_token(self, steps: int) -> None:
        """The cursor on in its stream."""
        stream, row = self.current, self.token
        if stream is not None and row is not None:
            self._move(stream.rows[: stream.count(self.token_count)], row, steps)

    def move_row(self, steps: int) -> None:
        """Move the cursor in the interleaved view."""
        rows = self.token_rows()
        if len(rows):
            self._move(rows, rows[-1] if self.row is None else self.row, steps)

    def _move(self, rows: array[int] | range, row: int, steps: int) -> None:
        place = bisect_left(rows, row) + steps
        if place >= len(rows):
            self.end()
        else:
            self.choose_token(rows[max(0, place)])

    def surprising(self, direction: int) -> bool:
        """Move to the next surprising token, or for -1 to the previous one; False if there is none."""
        stream, row, tokens = self.current, self.token, self.state.tokens
        if stream is None or row is None:
            return False
        limit = -self.threshold * math.log(2)
        count = stream.count(self.token_count)
        place = bisect_left(stream.rows, row) + direction
        while 0 <= place < count:
            if tokens.logprobs[stream.rows[place]] < limit:
                self.choose_token(stream.rows[place])
                return True
            place += direction
        return False

    def uncertain(self, steps: int) -> bool:
        """Move to the most uncertain token of the current stream, then to the next most, or for -1 back up.

        False where no token has the figure, see `uncertainty`. What needs alternatives looks at the latest `LOOKED_AT`.
        """
        stream = self.current
        if stream is None:
            return False
        count = stream.count(self.token_count)
        first = 0 if self.uncertainty == "surprisal" else max(0, count - LOOKED_AT)
        figures = {row: self.measures.uncertainty(row, self.uncertainty) for row in stream.rows[first:count]}
        ranked = sorted((-value, row) for row, value in figures.items() if value is not None)
        if not ranked:
            return False
        row, place = self._uncertain
        place = min(len(ranked) - 1, max(0, place + steps)) if row == self.row and row is not None else 0
        self.choose_token(ranked[place][1])
        self._uncertain = self.row, place
        return True

    def end(self) -> None:
        """Move to the last token and follow new ones."""
        self.row, self.frame, self.bar, self.from_beginning = None, None, 0, False

    @property
    def new_below(self) -> int:
        """Visible tokens below the cursor; 0 if it follows new ones."""
        if self.row is None:
            return 0
        rows = self.token_rows()
        return len(rows) - bisect_right(rows, self.row)

    def move_bar(self, steps: int) -> None:
        """The cursor among the alternatives down."""
        row = self.token
        last = len(self.measures.alternatives(row)) - 1 if row is not None else 0
        self.bar = min(max(0, last), max(0, self.bar + steps))

    def style(self, row: int) -> str:
        """Name of a token's style under the heat mode."""
        return self.measures.style(row, self.heat)

    # Frames.

    @property
    def current_frame(self) -> int | None:
        """The frame under the cursor: the chosen one, else the frame of the token."""
        if self.frame is not None:
            return self.frame
        row = self.token
        if row is not None:
            return self.state.tokens.frames[row]
        count = self.state.frames.until(self.time)
        return count - 1 if count else None

    def choose_frame(self, frame: int) -> None:
        """Put the cursor on a frame, and on its first token."""
        rows = self.state.tokens_of_frame(frame)
        if len(rows):
            self.choose_token(rows[0])
        self.frame = frame

    def move_frame(self, steps: int) -> None:
        """The cursor among the frames down."""
        count, here = self.state.frames.until(self.time), self.current_frame
        if count:
            self.choose_frame(min(count - 1, max(0, (count - 1 if here is None else here) + steps)))

    # Looks and marks.

    def next_heat(self) -> None:
        """Select the next heat mode."""
        self.heat = MODES[(MODES.index(self.heat) + 1) % len(MODES)]

    def next_mode(self) -> None:
        """Select the next view of tokens."""
        self.mode = VIEWS[(VIEWS.index(self.mode) + 1) % len(VIEWS)]

    def next_threshold(self) -> None:
        """Select the next threshold of surprise."""
        later = [t for t in THRESHOLDS if t > self.threshold]
        self.threshold = later[0] if later else THRESHOLDS[0]

    def mark_moment(self) -> None:
        """Remember this moment."""
        self.time_marks = sorted({*self.time_marks, round(self.time, 6)})

    def next_mark(self) -> float | None:
        """Move to the next mark of the user or the trace, wrapping around; its time, or None without marks."""
        marks = sorted({*self.time_marks, *(round(mark.time, 6) for mark in self.state.marks)})
        if not marks:
            return None
        there = next((mark for mark in marks if mark > self.time + 1e-6), marks[0])
        self.seek(there)
        return there
