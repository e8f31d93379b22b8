"""A pure fold of trace events into columns, from which everything in the inspector is read, and the texts of tokens."""

from __future__ import annotations

import codecs
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from lmtool.protocol.lmtp import frames
from lmtool.terminal.tui.columns import IN, NO_ID, OTHER, OUT, FrameLog, TokenLog
from lmtool.terminal.tui.streams import Digest, digest, hold_up_of, stream_of
from lmtool.trace.answers import Answers
from lmtool.trace.events import Blob, End, Frame, Message, Open, Piece, Remark, Request, Response, Vocab
from lmtool.trace.reader import TokenLine
from lmtool.trace.stream_events import OutputEvent, RequestStarted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lmtool.protocol.lmtp.frames import TokenEntry
    from lmtool.terminal.tui.streams import Stream
    from lmtool.trace.codec import Header
    from lmtool.trace.events import Event

T = TypeVar("T", str, str | bytes)


class Texts:
    """Texts of ids and of tokens of a log, from vocabularies and servers."""

    def __init__(self, tokens: TokenLog) -> None:
        self._tokens = tokens
        self._vocab: dict[int, str | bytes] = {}
        self._interned: dict[tuple[str | bytes, bool], int] = {}
        self._without_id: list[tuple[str | bytes, bool]] = []
        self._row_texts: dict[int, str] = {}
        """Texts by row, as the server sent them."""
        self._spellings: dict[int, _Spelling] = {}
        self.special_names: dict[int, str] = {}
        """Names of ids without text, such as `<|eos|>`."""
        self.corrections = 0
        """Incremented when a vocabulary explains what was shown as `⟨#7⟩`, which outdates cached texts."""

    def learn(self, tokens: Mapping[int, str | bytes]) -> None:
        """Add a vocabulary, or a part of one."""
        self._vocab.update(tokens)
        for spelling in self._spellings.values():
            self.corrections += spelling.forget_guesses()

    def intern(self, text: str | bytes, *, piece: bool = False) -> int:
        """Number below `NO_ID` for this text. piece: it is text of unknown tokens."""
        text = _encodable(text)
        place = self._interned.setdefault((text, piece), len(self._without_id))
        if place == len(self._without_id):
            self._without_id.append((text, piece))
        return NO_ID - 1 - place

    def is_piece(self, token: int) -> bool:
        """True for text of tokens that the server did not name."""
        return token < NO_ID and self._without_id[NO_ID - 1 - token][1]

    def set_text(self, row: int, text: str) -> None:
        """Set the text that a token completes, as a server sent it; a vocabulary that has its id counts more."""
        if self._tokens.ids[row] not in self._vocab:
            self._row_texts[row] = _encodable(text)

    def piece(self, token: int) -> str | bytes:
        """Meaning of an id: text, or bytes inside a character; `⟨#7⟩` if unknown."""
        if token < NO_ID:
            return self._without_id[NO_ID - 1 - token][0]
        return self._vocab.get(token, f"⟨#{token}⟩")

    def meaning(self, token: int) -> str | bytes | None:
        """Meaning of an id in a vocabulary; None if there is none."""
        return self._vocab.get(token)

    def special_name(self, token: int) -> str:
        """Name of an id without text: `<|eos|>`, or `⟨#7⟩` if unnamed; empty for every other id."""
        known = token in self._vocab
        if (known and self._vocab[token]) or (not known and token not in self.special_names):
            return ""
        return self.special_names.get(token, f"⟨#{token}⟩")

    def of_id(self, token: int) -> str:
        """Text of an id on its own; bytes inside a character as `⟨f0 9f⟩`, ids without text by name: `<|eos|>`."""
        piece = self.piece(token)
        name = self.special_name(token)
        return name or (f"⟨{piece.hex(' ')}⟩" if isinstance(piece, bytes) and piece else piece or f"⟨#{token}⟩")

    def spelling(self, token: int) -> bytes | None:
        """Bytes of an id; None if unknown."""
        if token >= NO_ID and token not in self._vocab:
            return None
        piece = self.piece(token)
        return piece if isinstance(piece, bytes) else None if "\ufffd" in piece and token < NO_ID else piece.encode()

    def differences(self, spell: Callable[[int], bytes]) -> dict[int, bool]:
        """For each id with text on both sides, True if the bytes differ."""
        pieces = {token: piece.encode() if isinstance(piece, str) else piece for token, piece in self._vocab.items()}
        return {token: other != piece for token, piece in pieces.items() if piece and (other := spell(token))}

    def quote(self, token: int) -> str:
        """Text of an id in quotes; signs such as `⟨f0 9f⟩` and `⟨#7⟩` without quotes."""
        piece = self.piece(token)
        is_text = isinstance(piece, str) and piece and (token < NO_ID or token in self._vocab)
        return repr(piece) if is_text else self.of_id(token)

    def quote_row(self, row: int) -> str:
        """The text of a token of the log."""
        text = self._row_texts.get(row)
        return repr(text) if text else self.quote(self._tokens.ids[row])

    def text_or_none(self, row: int) -> str | None:
        """Text of a token of the log on its own; None if unknown."""
        token = self._tokens.ids[row]
        return self._row_texts.get(row) or (self.of_id(token) if token < NO_ID or token in self._vocab else None)

    def of_row(self, row: int) -> str:
        """Text of a token of the log on its own."""
        return self._row_texts.get(row) or self.of_id(self._tokens.ids[row])

    def text_at(self, stream: Stream, position: int) -> str:
        """The text that the token at this position completes: a character belongs to its last token.

        A character that a finished stream left open becomes U+FFFD at its last token.
        """
        spelling = self._spellings.get(stream.index)
        if spelling is None:
            spelling = self._spellings[stream.index] = _Spelling()
        while len(spelling.texts) <= position:
            row = stream.rows[len(spelling.texts)]
            token = self._tokens.ids[row]
            text = self._row_texts.get(row)
            guess = text is None and token >= NO_ID and token not in self._vocab
            spelling.add(self.piece(token) if text is None else text, guess=guess)
        text_of_token = spelling.texts[position]
        if position == len(stream.rows) - 1 and stream.ended is not None and spelling.open:
            return f"{text_of_token}\ufffd"
        return text_of_token


def _encodable(text: T) -> T:
    """The text with lone surrogates replaced by U+FFFD."""
    if isinstance(text, str) and not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class _Spelling:
    """The text of one stream, token by token, with whole characters."""

    __slots__ = ("_decoder", "_guess", "texts")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._guess: tuple[int, tuple[bytes, int]] | None = None
        self.texts: list[str] = []

    @property
    def open(self) -> bool:
        """True if the last token ends inside a character."""
        return bool(self._decoder.getstate()[0])

    def add(self, piece: str | bytes, *, guess: bool) -> None:
        """Add the next token's piece. guess: it is a placeholder for an unknown one."""
        if guess and self._guess is None:
            self._guess = len(self.texts), self._decoder.getstate()
        if isinstance(piece, str) and not self.open:
            self.texts.append(piece)
        else:
            self.texts.append(self._decoder.decode(piece if isinstance(piece, bytes) else piece.encode()))

    def forget_guesses(self) -> bool:
        """Drop everything from the first guess on; False if there was none."""
        if self._guess is None:
            return False
        place, state = self._guess
        del self.texts[place:]
        self._decoder.setstate(state)
        self._guess = None
        return True


_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of the trace with a text."""

    time: float
    text: str


class State:
    """All events so far as streams, tokens and frames. Add each event once; nothing is removed.

    `Answers` says what events mean for streams; TOKEN frames go to the columns in bulk.
    """

    def __init__(self, header: Header | None = None) -> None:
        """Begin empty. header: of the trace, for its model."""
        self.streams: list[Stream] = []
        self.tokens = TokenLog()
        self.frames = FrameLog()
        self.texts = Texts(self.tokens)
        self.marks: list[Mark] = []
        self.connections = 0
        """Opened so far."""
        self.complete = False
        """True if there was an end record."""
        self.model: str | None = None
        self.vocab_size: int | None = None
        self.bos: int | None = None
        """First token of an empty prompt."""
        self.eos: frozenset[int] = frozenset()
        self.tokenizers: frozenset[str] = frozenset()
        """Known hashes of the tokenizers of the served models."""
        self._answers = Answers(self._new_stream)
        self._request_frame = 0
        """Frame of the requests that are being added."""
        self._blobs: dict[str, Digest] = {}
        self._plain = False
        """True if the server is known to speak LMTP without extensions, such as LMQL's."""
        self._unconditional: set[int] = set()
        """Streams that score without context, and have no token yet."""
        self._thinking: set[int] = set()
        """Streams whose last token belongs to a thought."""
        if header is not None:
            self._learn(header.model)

    @property
    def now(self) -> float:
        """Time of the last event, in seconds since the trace began."""
        return self.frames.end

    # Adding events.

    def add(self, event: Event, offset: int) -> None:
        """Add the next event. offset: byte of the trace at which its line begins."""
        self.feed((event,), (offset,))

    def feed(self, events: Sequence[Event], offsets: Iterable[int] | None = None) -> None:
        """Add the next events. offsets: of their lines; without them, they cannot be read again."""
        places: list[int] = []
        lines: list[TokenLine] = []
        for event, offset in zip(events, [0] * len(events) if offsets is None else offsets, strict=True):
            command, answer = event.answer() if isinstance(event, Frame) else (None, [])
            if command == "TOKEN" and (entries := frames.token_entries(answer)):
                places.append(offset)
                lines.append(TokenLine(event.time, "<", event.connection, "TOKEN", entries))
                continue
            if lines:
                self.add_tokens(places, lines)
                places, lines = [], []
            self._add_other(event, offset)
        if lines:
            self.add_tokens(places, lines)

    def add_tokens(self, offsets: Sequence[int], lines: Sequence[TokenLine]) -> None:
        """Add consecutive TOKEN frames. offsets: of their lines."""
        entries = [entry for line in lines for entry in line.entries]
        ends: list[int] = []
        reasons, errors = [one.finish_reason for one in entries], [one.error for one in entries]
        has_ends = reasons.count(None) + errors.count(None) != 2 * len(entries)
        if has_ends:
            ends = [i for i, one in enumerate(entries) if one.last]
        if ends and any(self._answers.lmtp[line.connection].any_queued for line in lines):
            if len(lines) > 1:  # an id may change hands with an end
                for offset, line in zip(offsets, lines, strict=True):
                    self.add_tokens((offset,), (line,))
                return
            self._request_frame, ends = len(self.frames), []
            owners = self._answers.owners(max(lines[0].time, self.now), lines[0].connection, entries)
        else:
            owners = self._owners(lines)
        for owner, one in zip(owners, entries, strict=True) if has_ends else ():
            owner.count_prompt(one.usage)
        counts = [len(line.entries) for line in lines]
        first = len(self.frames)
        carriers: Sequence[int] = range(first, first + len(lines))
        if counts.count(1) != len(counts):
            carriers = [frame for frame, count in enumerate(counts, first) for _ in range(count)]
        ids = [one.token for one in entries]
        if ids and (min(ids) < 0 or max(ids) >= frames.LARGEST_ID):
            counting = [i for i, one in enumerate(entries) if one.counts]
            counts = _counts([carriers[i] - first for i in counting], len(lines))
            self._add_frames(offsets, lines, counts)
            self._put([entries[i] for i in counting], [owners[i] for i in counting], [carriers[i] for i in counting])
        else:
            self._add_frames(offsets, lines, counts)
            self._put(entries, owners, carriers, ids)
        for i in ends:
            connection = lines[carriers[i] - first].connection
            self._answers.end(connection, owners[i], self.frames.times[carriers[i]], entries[i])

    def _owners(self, lines: Sequence[TokenLine]) -> list[Stream]:
        """The stream of each entry."""
        tables = self._answers.lmtp
        try:
            return [
                holders[one.stream_id]
                for line in lines
                for holders in (tables[line.connection].holders,)
                for one in line.entries
            ]
        except KeyError:
            for frame, line in enumerate(lines, len(self.frames)):
                self._request_frame = frame
                for one in line.entries:
                    if one.stream_id not in tables[line.connection].holders:
                        self._answers.start_unannounced(line.time, line.connection, one.stream_id)
            return self._owners(lines)

    def _add_frames(self, offsets: Sequence[int], lines: Sequence[TokenLine], counts: Sequence[int]) -> None:
        first_tokens = list(accumulate(counts, initial=len(self.tokens)))[:-1]
        connections = [line.connection for line in lines]
        self.frames.extend([line.time for line in lines], offsets, connections, IN, first_tokens)

    def _put(
        self,
        entries: Sequence[TokenEntry],
        owners: Sequence[Stream],
        carriers: Sequence[int],
        ids: list[int] | None = None,
    ) -> None:
        if ids is None:
            intern = self.texts.intern
            ids = [one.token if one.has_token else intern(one.own_text or "") for one in entries]
        before = len(self.tokens)
        logprobs = [_NAN if one.logprob is None else one.logprob for one in entries]
        self.tokens.extend([owner.index for owner in owners], ids, logprobs, carriers)
        for row, owner in enumerate(owners, before):
            owner.rows.append(row)
        if self._unconditional:
            self._forget_first(owners, before)
        texts = [one.text for one in entries]
        thoughts = [one.reasoning for one in entries]
        if self._thinking or thoughts.count(None) != len(thoughts):
            texts = [one.own_text for one in entries]
            for row, (owner, one) in enumerate(zip(owners, entries, strict=True), before):
                self._note_thought(owner, row, is_thought=one.is_thought)
        if texts.count(None) != len(texts):
            for row, text in enumerate(texts, before):
                if text is not None and self.tokens.ids[row] >= 0:
                    self.texts.set_text(row, text)

    def _note_thought(self, stream: Stream, row: int, *, is_thought: bool) -> None:
        """Note where a stream's thought begins or ends."""
        if is_thought != (stream.index in self._thinking):
            stream.thought_bounds.append(row)
            self._thinking ^= {stream.index}

    def _forget_first(self, owners: Sequence[Stream], first: int) -> None:
        """Forget the placeholder logprob of tokens that are scored with nothing before them."""
        for row, owner in enumerate(owners, first):
            if owner.index in self._unconditional:
                self._unconditional.discard(owner.index)
                if owner.logprob_of_next(self.tokens.logprob(row)) is None:
                    self.tokens.logprobs[row] = _NAN

    def _add_other(self, event: Event, offset: int) -> None:
        """Add an event without LMTP tokens."""
        if isinstance(event, Vocab):
            self.texts.learn(event.tokens)
            self.texts.special_names = {**event.names, **self.texts.special_names}
            return
        if isinstance(event, Blob):
            self._blobs[event.sha256] = digest(event.value)
            return
        frame = self.frames.add(event.time, offset, event.connection, _direction(event), len(self.tokens))
        self._request_frame = frame
        for step in self._answers.follow(event):
            if isinstance(step, OutputEvent) and step.counts:
                self._put_output(step, frame)
        if isinstance(event, Open):
            self.connections += 1
        elif isinstance(event, Remark):
            self.marks.append(Mark(self.frames.times[frame], event.text))
        elif isinstance(event, End):
            self.complete = True
        elif isinstance(event, Frame):
            self._add_message(event)

    def _add_message(self, event: Frame) -> None:
        """Learn a server's statements on its model and on waiting streams."""
        command, entries = event.answer()
        for one in entries if command == "MSG" else ():
            holder = self._answers.lmtp[event.connection].holders.get(frames.stream_key(one.get("stream_id")))
            if holder is not None and (hold_up := hold_up_of(one, event.time)) is not None:
                holder.hold_ups.append(hold_up)
        for one in entries if command in ("MSG", "MODEL_INFO") else ():
            info = one.get("model_info", one)
            self._learn(info if isinstance(info, dict) else {})
            if info is not one:
                self._plain = not isinstance(info, dict) or "lmtp" not in info

    def _put_output(self, output: OutputEvent, frame: int) -> None:
        """Add a token of an HTTP answer, or a piece of its text, to its stream."""
        stream = self.streams[output.stream.index]
        token = self.texts.intern(output.text or "", piece=output.is_piece)
        stream.note_section(output)
        stream.rows.append(len(self.tokens))
        logprob = _NAN if output.logprob is None else output.logprob
        self._note_thought(stream, len(self.tokens), is_thought=output.is_thought)
        self.tokens.extend((stream.index,), (token,), (logprob,), (frame,))

    def _new_stream(self, started: RequestStarted, index: int, choice: int) -> Stream:
        """A new stream for a request; kept only if it can generate."""
        frame = self.streams[started.stream.index].frame if choice else self._request_frame
        stream = stream_of(started, index, choice, frame, self._blobs)
        if index >= 0:
            stream.logprobs = self.tokens.logprobs
            temperature = stream.payload.get("temperature")
            if self._plain and stream.kind == "GEN" and isinstance(temperature, int | float) and 0 < temperature != 1:
                stream.divided_by_temperature, stream.logprobs_mode = True, None
            if stream.is_unconditional:
                self._unconditional.add(index)
            self.streams.append(stream)
            self.model = self.model or stream.model
        return stream

    def _learn(self, facts: Mapping[str, object]) -> None:
        name = facts.get("name", facts.get("model"))
        size = facts.get("vocab_size")
        self.model = name if isinstance(name, str) else self.model
        if type(size) is int and size > 0:
            self.vocab_size = max(size, self.vocab_size or 0)  # of several models: bounds must hold for each
        bos, eos, tokenizer = facts.get("bos_token_id", facts.get("bos")), facts.get("eos"), facts.get("tokenizer")
        self.bos = bos if type(bos) is int else self.bos
        ends = facts.get("eos_token_ids", [eos])
        self.eos |= {one for one in ends if type(one) is int} if isinstance(ends, list) else set()
        names = {} if self.bos is None else {self.bos: "<|bos|>"}
        self.texts.special_names |= names | dict.fromkeys(self.eos, "<|eos|>")
        if isinstance(tokenizer, dict) and isinstance(sha256 := tokenizer.get("sha256"), str):
            self.tokenizers |= {sha256}

    # Looking at it.

    def tokens_at(self, moment: float | None) -> int:
        """Tokens that had arrived at a moment; None: all."""
        if moment is None:
            return len(self.tokens)
        frame = bisect_right(self.frames.times, moment)
        return self.frames.first_tokens[frame] if frame < len(self.frames) else len(self.tokens)

    def tokens_of_frame(self, frame: int) -> range:
        """Rows of the tokens of a frame."""
        after = frame + 1
        last = self.frames.first_tokens[after] if after < len(self.frames) else len(self.tokens)
        return range(self.frames.first_tokens[frame], last)

    def stream_of(self, row: int) -> Stream:
        """The stream of a token."""
        return self.streams[self.tokens.streams[row]]

    def is_piece(self, row: int) -> bool:
        """True if a row is text of tokens that the server did not name."""
        return self.texts.is_piece(self.tokens.ids[row])

    def is_thought(self, row: int) -> bool:
        """True if a token belongs to the model's thought before its answer."""
        return self.stream_of(row).is_thought(row)

    def find(self, label: str) -> Stream | None:
        """The latest stream of this label."""
        return next((s for s in reversed(self.streams) if s.label == label), None)

    def text(self, stream: Stream, count: int | None = None) -> str:
        """The text of a stream's first `count` tokens, all of them by default."""
        count = len(stream.rows) if count is None else count
        return "".join(self.texts.text_at(stream, i) for i in range(count))

    def prompt_text(self, stream: Stream) -> str:
        """End of a stream's prompt; that of an Evergreen action may arrive after the action."""
        if stream.nodes is not None:
            return stream.nodes.prompt_end()
        begin, ids = (stream.prompt, ()) if isinstance(stream.prompt, str) else ("", stream.prompt)
        data = b"".join(
            p if isinstance(p, bytes) else p.encode() for p in map(self.texts.piece, (*ids, *stream.generated))
        )
        return begin + data.decode(errors="replace")


def _counts(frames: Sequence[int], size: int) -> list[int]:
    """Count of each number below `size`."""
    counts = [0] * size
    for frame in frames:
        counts[frame] += 1
    return counts


def _direction(event: Event) -> int:
    if isinstance(event, Frame | Message):
        return OUT if event.direction == ">" else IN
    if isinstance(event, Piece | Response):
        return IN
    return OUT if isinstance(event, Request) else OTHER
