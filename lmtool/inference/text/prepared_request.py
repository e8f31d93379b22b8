"""A request with token ids in place of its texts, and what turns its outputs back into text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.core.errors import RequestError
from lmtool.core.types import ChatPrompt, GenerateRequest, SamplingParams
from lmtool.inference.text.reasoning_parsers import find_parser
from lmtool.inference.text.stop_strings import StopStrings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.core.interfaces import AnswerCheck, Tokenizer
    from lmtool.core.reasoning import ThoughtMarks
    from lmtool.core.types import ScoreRequest
    from lmtool.inference.text.reasoning_parser import ThoughtReader

_TAIL = 16
"""Ids at a prompt's end, before a prefill, that are looked at for a thought that it leaves open."""
_BYTES_PER_CHARACTER = 4
"""At most, in UTF-8: a text has no more ids than bytes."""


class PreparedRequest:
    """A request with ids in place of texts, and what turns its outputs back into text."""

    __slots__ = (
        "_tokenizer", "check", "constraint", "detokenizer", "marks", "prompt_tokens", "reader", "request",
        "shows_text", "stop_ids", "stops", "written",
    )  # fmt: skip

    def __init__(
        self, request: GenerateRequest | ScoreRequest, tokenizer: Tokenizer, check: AnswerCheck | None
    ) -> None:
        """Tokenize. Raises `RequestError` for messages without a template, or refused by it, and for bad stops.

        check: validates the answer.
        """
        self._tokenizer = tokenizer
        sampling = request.sampling if isinstance(request, GenerateRequest) else SamplingParams()
        stops = sampling.stop
        self.stop_ids = sampling.stop_token_ids
        self.constraint = request.constraint if isinstance(request, GenerateRequest) else None
        self.check = check
        self.shows_text = request.text
        self.stops = StopStrings(stops) if stops else None
        prompt = request.prompt if isinstance(request.prompt, tuple) else tuple(tokenizer.encode_prompt(request.prompt))
        self.prompt_tokens = len(prompt)
        self.marks: dict[int, str] = {}
        """Special tokens that `reader` must see, by id."""
        self.reader: ThoughtReader | None = None
        """Tells thoughts from the answer; None where that was not asked for, or the model has none."""
        self.request: GenerateRequest | ScoreRequest
        if isinstance(request, GenerateRequest):
            marks = self._prepare_thought(request, prompt, tokenizer)
            sampling = replace(request.sampling, stop=())
            self.request = replace(
                request, prompt=prompt, sampling=sampling, text=False, reasoning=None, thought_marks=marks
            )
        else:
            scored = request.scored
            ids = tuple(tokenizer.encode_continuation(scored)) if isinstance(scored, str) else scored
            self.request = replace(request, prompt=prompt, scored=ids, text=False)
        self.detokenizer = tokenizer.detokenizer(prompt) if self.shows_text or stops or check or self.reader else None
        self.written = ""
        self._replay(request.generated if isinstance(request, GenerateRequest) else ())

    def _prepare_thought(
        self, request: GenerateRequest, prompt: tuple[int, ...], tokenizer: Tokenizer
    ) -> ThoughtMarks | None:
        """Set `reader` and `marks`; the thought that constraint and budget have to do with, None where none of it."""
        form, reasoning = tokenizer.reasoning if request.reasoning is not None else None, request.reasoning
        parser = None if form is None else find_parser(form.name)
        if parser is None or reasoning is None:
            return None
        self.marks = tokenizer.special_marks(parser.marks)
        prefill = request.prompt.prefill if isinstance(request.prompt, ChatPrompt) else reasoning.prefill
        ids = prompt[-_TAIL - _BYTES_PER_CHARACTER * len(prefill) :]
        spelled = (self.marks.get(token, "").encode() or tokenizer.piece(token) for token in ids)
        tail = b"".join(spelled).decode(errors="replace")
        beginning = parser.beginning(tail.removesuffix(prefill) if prefill else tail, prefill)
        constrained, budget = request.constraint is not None, reasoning.budget
        self.reader = parser.reader(beginning, constrained=constrained)
        if not constrained and budget is None:
            return None
        return parser.thought_marks(beginning, tokenizer.encode_continuation, budget, constrained=constrained)

    def text_of(self, token: int) -> str:
        """What the stream's next token adds to its text, thoughts and their marks included; to be `split`."""
        assert self.detokenizer is not None, "the stream's text is wanted"
        if token in self.marks:
            return self.marks[token]
        if self.reader is not None and not self._tokenizer.piece(token):
            self.reader.push_special()
        return self.detokenizer.push(token)

    def split(self, text: str, *, last: bool = False) -> tuple[str | None, str]:
        """What a token's text adds to the thought, None where it is none of it; and to the answer.

        last: whether nothing comes behind it.
        """
        reader = self.reader
        if reader is None:
            return None, text
        inside = reader.thinking
        thought, answer = reader.push(text)
        if last:
            rest = reader.finish()
            thought, answer = thought + rest.reasoning, answer + rest.answer
        inside = (inside and not answer) or reader.thinking
        return (thought if inside or thought else None), answer

    def _replay(self, generated: Sequence[int]) -> None:
        """Bring text and stop strings to where the stream stood behind these ids; what was shown is `written`.

        A character that is open there, or text that may become a stop string, is shown with what follows. Raises
        `RequestError` where the stream had ended before the last of the ids.
        """
        if self.detokenizer is None or not generated:
            return
        shown = []
        for index, token in enumerate(generated):
            if self.stops is not None and self.stops.matched is not None:
                raise RequestError(
                    f"generated goes on at index {index}, behind the stop string {self.stops.matched!r}",
                    "send the ids of one stream, as they came",
                )
            _, text = self.split(self.text_of(token))
            shown.append(text if self.stops is None else self.stops.push(text))
        self.written = "".join(shown)
