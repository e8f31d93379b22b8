"""The tokens of a stream as a line that a person may edit, and what is to be scored then."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from lmtool.tui.recorded_request import ids_of, prompt_of, request_of
from lmtool.tui.runs import visible
from lmtool.tui.sources.source import TextToScore

if TYPE_CHECKING:
    from lmtool.tui.streams import Stream
    from lmtool.tui.view import View
    from lmtool.types import Prompt

LINE_FEED = visible("\n")
"""What stands for a line feed in the line, and means one where it is typed."""


@dataclass(frozen=True, slots=True)
class EditableText:
    """What a stream has generated, or was given to score."""

    prompt: Prompt
    ids: tuple[int, ...]
    texts: tuple[str, ...]
    """What each token completes: a character belongs to its last token."""
    whole: tuple[bool, ...]
    """For each token whether a character ends with it, so that a text can be cut there."""
    model: str | None

    @property
    def line(self) -> str:
        """All of it in one line, harmless."""
        return "".join(map(visible, "".join(self.texts)))

    def after_edit(self, line: str) -> TextToScore:
        """The tokens as they are where the line is; only what differs is left to be tokenized."""
        own = self.line
        if line == own:
            return TextToScore(self.prompt, self.ids, "", (), line, self.model)
        head = _common(own, line)
        tail = _common(own[head:][::-1], line[head:][::-1])
        ends = list(accumulate((len("".join(map(visible, text))) for text in self.texts), initial=0))
        cuts = [i for i in range(len(ends)) if i == 0 or (self.whole[i - 1] and self.texts[i - 1])]
        first = max(i for i in cuts if ends[i] <= head)
        last = min((i for i in cuts if i >= first and ends[i] >= len(own) - tail), default=len(self.ids))
        if not "".join(self.texts[last:]):
            last = len(self.ids)  # an ending belongs to the text before it
        typed = line[head : len(line) - tail].replace(LINE_FEED, "\n")
        before, after = self._between(ends[first], head), self._between(len(own) - tail, ends[last])
        text = f"{before}{typed}{after}"
        kept = "".join(self.texts[:first]), "".join(self.texts[last:])
        return TextToScore(
            self.prompt, self.ids[:first], text, self.ids[last:], f"{kept[0]}{text}{kept[1]}", self.model
        )

    def _between(self, begin: int, end: int) -> str:
        """The characters that stand between two places of the line."""
        origins = [part for c in "".join(self.texts) for part in (c, *[""] * (len(visible(c)) - 1))]
        return "".join(origins[begin:end])


def editable_text(view: View, stream: Stream) -> EditableText:
    """A stream's tokens that are seen, after its own prompt. Raises `UsageError` where they cannot be asked again."""
    message, count = request_of(view, stream), stream.count(view.seen)
    ids, decoder, whole = ids_of(view, stream, count), codecs.getincrementaldecoder("utf-8")("replace"), []
    for token in ids:
        decoder.decode(view.state.texts.spelling(token) or b"")
        whole.append(not decoder.getstate()[0])
    return EditableText(
        prompt_of(view, message),
        ids,
        tuple(view.state.shown(stream, i) for i in range(count)),
        tuple(whole),
        message.request.model,
    )


def _common(ours: str, theirs: str) -> int:
    """How many characters are equal from the first one on."""
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(ours), len(theirs)))
