"""What an audit asks and what it is answered, whatever carries it: questions, answers, the evidence of a wire."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lmtool.core.types import LogprobsMode

Name: TypeAlias = int | str | bytes
"""What a server calls a token: its id, its text, or its bytes where these are no text on their own."""
Kind: TypeAlias = Literal["raw", "processed"]
"""What a logprob is of: the model's own distribution, or the one that tokens are sampled from."""
COLD, HOT = 0.6, 1.7
"""Temperatures that are asked for beside 0 and 1."""
PENALTIES = (("presence_penalty", 1.9), ("frequency_penalty", 1.1))
"""Penalties that are asked for, one at a time."""
REPLACEMENT = "\ufffd"
"""Stands for bytes that are no text: several tokens may be called so."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request. A parameter that is None is not sent, or sent at the value that changes nothing."""

    prompt: str | tuple[int, ...]
    max_tokens: int = 16
    temperature: float = 0.0
    alternatives: int | None = None
    """Alternatives of each token; None: as many as the server gives."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    n: int = 1
    stream: bool = False
    echo: bool = False
    prompt_logprobs: bool = False
    stop: str | None = None
    stop_token_id: int | None = None
    choice: tuple[str, ...] = ()
    """A constraint: the answer is one of these texts."""
    mode: LogprobsMode | None = None
    """LMTP's `logprobs_mode`."""
    by_text: bool = False
    """True if tokens are to be named by their texts although the server can name them by ids."""
    scored: tuple[Name, ...] = ()
    """LMTP: the ids whose logprobs behind the prompt are asked for."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer."""

    name: Name
    logprob: float | None
    """Nats; None where the server gives none, as for the first token of a prompt."""
    alternatives: tuple[tuple[Name, float], ...] = ()
    """Names and logprobs in nats, in the order in which they were sent."""
    ordered: bool = True
    """True if that order means anything: an object's members have none."""

    @property
    def best(self) -> dict[Name, float]:
        """Alternatives whose name is theirs alone, and the token itself, best first; of two of one name the better."""
        named = [(name, value) for name, value in self.alternatives if is_clear(name)]
        if self.logprob is not None and is_clear(self.name):
            named.append((self.name, self.logprob))
        best: dict[Name, float] = {}
        for name, value in sorted(named, key=lambda one: -one[1]):
            best.setdefault(name, value)
        return best


def is_clear(name: Name) -> bool:
    """True if a name can be that of one token only."""
    return name not in ("", b"") and not (isinstance(name, str) and REPLACEMENT in name)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the texts of an answer."""

    tokens: tuple[Token, ...] = ()
    """Those with logprobs."""
    text: str | None = None
    """None where the wire carries ids only."""
    finish_reason: str | None = None
    endings: int = 1
    """How often the server said that it ended."""
    ids: tuple[int, ...] | None = None
    """None where the server does not tell."""


@dataclass(frozen=True, slots=True)
class Count:
    """The tokens that a server says it has counted; None for what it does not say."""

    prompt: int | None = None
    completion: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question was answered."""

    question: Question
    exchange: int
    """Its number in the trace."""
    choices: tuple[Choice, ...] = ()
    prompt: tuple[Token | None, ...] = ()
    """Logprobs of the prompt's tokens where they were asked for; None for a token without."""
    prompt_ids: tuple[int, ...] | None = None
    count: Count | None = None
    refusal: str = ""
    """Why the server did not answer, in its words; empty where it did."""

    @property
    def only(self) -> Choice:
        """The first choice, an empty one if there is none."""
        return self.choices[0] if self.choices else Choice()


@dataclass(slots=True)
class Evidence:
    """All answers of one wire, by what they were asked for."""

    wire: str
    """`completions`, `chat` or `lmtp`."""
    width: int
    """Alternatives that a token has."""
    vocab_size: int | None = None
    """None where the server does not tell."""
    mode_claimed: bool = False
    """True if the wire promises raw logprobs, as LMTP's `logprobs_mode` does."""
    kind: Kind | None = None
    """What its logprobs were found to be of; None while that is not known."""
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    omitted: dict[str, str] = field(default_factory=dict)
    """What was not asked, and why."""

    def add(self, name: str, answers: Iterable[Answer]) -> None:
        """Keep answers."""
        self.answers.setdefault(name, []).extend(answers)

    def all(self, prefix: str) -> list[Answer]:
        """The answers of this name, or of those `prefix/...`, that are no refusals."""
        return [one for one in self._of(prefix) if not one.refusal]

    def first(self, name: str) -> Answer | None:
        """The first of them."""
        return next(iter(self.all(name)), None)

    def reason(self, prefix: str) -> str:
        """Why there is no answer of this name."""
        refusals = [one.refusal for one in self._of(prefix) if one.refusal]
        return refusals[0] if refusals else self.omitted.get(prefix, "it was not asked")

    def _of(self, prefix: str) -> list[Answer]:
        return [one for name, found in self.answers.items() if name.partition("/")[0] == prefix for one in found]

    def pairs(self, first: str, second: str) -> list[tuple[str, Answer, Answer]]:
        """Answers `first/x` and `second/x` to the same question, and x."""
        found = []
        for name in self.answers:
            head, _, rest = name.partition("/")
            one, other = self.first_of(name), self.first_of(f"{second}/{rest}")
            if head == first and one is not None and other is not None:
                found.append((rest, one, other))
        return found

    def first_of(self, name: str) -> Answer | None:
        """The first answer of exactly this name."""
        return next((one for one in self.answers.get(name, ()) if not one.refusal), None)

    @property
    def everything(self) -> list[Answer]:
        """All answers that are no refusals."""
        return [one for found in self.answers.values() for one in found if not one.refusal]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    verdict: Literal["pass", "breach", "not offered"]
    sentence: str
    off: float | None = None
    """How far off, in the unit that the sentence names; None where nothing is measured."""
    exchanges: tuple[int, ...] = ()
    """Numbers of the exchanges that show it."""
    measured: Mapping[str, object] = field(default_factory=dict)
    """Further figures, for the report."""


def passes(sentence: str, off: float | None = None, **measured: object) -> Finding:
    """A finding that it holds."""
    return Finding("pass", sentence, off, (), measured)


def breach(sentence: str, *answers: Answer, off: float | None = None, **measured: object) -> Finding:
    """A finding that it does not, shown by these answers."""
    numbers = tuple(dict.fromkeys(one.exchange for one in answers))
    return Finding("breach", sentence, off, numbers, measured)


def not_offered(reason: str) -> Finding:
    """A finding that it could not be asked."""
    return Finding("not offered", reason)
