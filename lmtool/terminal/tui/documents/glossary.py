"""The words over columns and beside figures, and what they mean."""

from __future__ import annotations

from typing import NamedTuple


class Word(NamedTuple):
    """A word that stands on the screen."""

    name: str
    sentence: str
    panes: str
    """Panes that have it, with blanks between."""


# fmt: off
WORDS: tuple[Word, ...] = (
    Word("id", "connection and stream, such as 2/1: the first stream of the second connection", "streams"),
    Word("kind", "what was asked for: GEN generates, SCORE gives a text its logprobs, CHAT and so on are of HTTP APIs",
         "streams"),
    Word("prompt", "the end of what the model continues", "streams"),
    Word("params", "parameters of the request: t temperature, p top_p, k top_k, top alternatives a token",
         "streams"),
    Word("tok/max", "tokens so far, and at most", "streams"),
    Word("tok/s", "tokens a second, after those of the first frame", "streams time"),
    Word("ttft", "time to first token: from the request to the first frame with a token", "streams time"),
    Word("p99", "the gap between frames with tokens that 99 of 100 do not exceed; p50 is the median", "streams time"),
    Word("ppl", "perplexity, 2 to the mean surprisal in bits: 1 is certain, 10 is as unsure as among ten equal tokens",
         "streams"),
    Word("last", "the latest token", "streams"),
    Word("state", "run, wait, an error, or why the stream ended: stop (the model or a stop text), length (max_tokens)",
         "streams"),
    Word("stall", "a gap over 50 ms and over four times the median gap", "time"),
    Word("gap", "time between a frame with tokens of a stream and the one before; none within a frame", "tokens time"),
    Word("tokens/frame", "tokens that arrive together, on average", "time"),
    Word("p", "probability of the token after everything before it, 0 to 1; .83 is 83 in 100", "tokens detail"),
    Word("bits", "surprisal, -log2 p: 0 is certain, 1 is a coin toss, each further bit is half as likely",
         "tokens detail"),
    Word("logprob", "natural logarithm of p: raw is the model's own, biased is after logit_bias and constraint, "
         "processed is what was sampled from", "detail"),
    Word("rank", "place of the token among all by probability; >5: tokens that were not sent may be likelier",
         "tokens detail"),
    Word("entropy", "how open the choice was, in bits: 0 is settled, 3 is like eight equal tokens; a range, because "
         "what was not sent may be a few large pieces or spread over the whole vocabulary", "tokens detail"),
    Word("margin", "how much likelier the best token was than the second: 1 is settled, 0 is a tie", "tokens"),
    Word("mass", "probability of the sent alternatives together", "detail"),
    Word("other", "all tokens that the server did not send", "detail"),
    Word("heat", "what the colours of tokens say; the scale stands below the tokens", "tokens"),
    Word("thought", "what the model thinks before its answer: purple and italic, or italic alone, up to a wall",
         "tokens detail"),
    Word("frame", "one message over the wire; > to the server, < from it", "frames"),
)
# fmt: on


def words_of(pane: str) -> list[Word]:
    """The words that a pane has."""
    return [word for word in WORDS if pane in word.panes.split()]


def find(name: str) -> Word | None:
    """A word by its name."""
    return next((word for word in WORDS if word.name == name), None)
