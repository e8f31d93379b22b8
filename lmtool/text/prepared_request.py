"""A request with token ids in place of its texts, and what turns its outputs back into text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.errors import RequestError
from lmtool.text.stop_strings import StopStrings
from lmtool.types import GenerateRequest, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.interfaces import AnswerCheck, Tokenizer
    from lmtool.types import ScoreRequest


class PreparedRequest:
    """A request with ids in place of texts, and what turns its outputs back into text."""

    __slots__ = (
        "check", "constraint", "detokenizer", "prompt_tokens", "request", "shows_text", "stop_ids", "stops", "written",
    )  # fmt: skip

    def __init__(
        self, request: GenerateRequest | ScoreRequest, tokenizer: Tokenizer, check: AnswerCheck | None
    ) -> None:
        """Tokenize. Raises `RequestError` for messages without a template, or refused by it, and for bad stops.

        check: validates the answer.
        """
        sampling = request.sampling if isinstance(request, GenerateRequest) else SamplingParams()
        stops = sampling.stop
        self.stop_ids = sampling.stop_token_ids
        self.constraint = request.constraint if isinstance(request, GenerateRequest) else None
        self.check = check
        self.shows_text = request.text
        self.stops = StopStrings(stops) if stops else None
        prompt = request.prompt if isinstance(request.prompt, tuple) else tuple(tokenizer.encode_prompt(request.prompt))
        self.prompt_tokens = len(prompt)
        self.request: GenerateRequest | ScoreRequest
        if isinstance(request, GenerateRequest):
            self.request = replace(request, prompt=prompt, sampling=replace(request.sampling, stop=()), text=False)
        else:
            scored = request.scored
            ids = tuple(tokenizer.encode_continuation(scored)) if isinstance(scored, str) else scored
            self.request = replace(request, prompt=prompt, scored=ids, text=False)
        self.detokenizer = tokenizer.detokenizer(prompt) if self.shows_text or stops or check else None
        self.written = ""
        self._replay(request.generated if isinstance(request, GenerateRequest) else ())

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
            text = self.detokenizer.push(token)
            shown.append(text if self.stops is None else self.stops.push(text))
        self.written = "".join(shown)
