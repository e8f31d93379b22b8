"""The questions of an audit, in order: alone, varied, in a crowd, many draws; each builds on the answers before."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lmtool.measure.audit.evidence import COLD, HOT, PENALTIES, Evidence, Question
from lmtool.measure.audit.truncation import cut_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from lmtool.measure.audit.evidence import Answer
    from lmtool.measure.audit.wire import Wire

TOKENS = 24
"""Length of most answers."""
NEIGHBOURS = 11
"""Other requests in flight beside one of a crowd."""
AT_ONCE = 8
"""Requests in flight where it does not matter."""
TRUNCATED_DRAWS = 12
CHOICE = ("yes", "no", "perhaps")
_SEED = 20_000


Part: TypeAlias = Literal[
    "alone", "crowd", "scored", "temperatures", "truncations", "penalties", "endings", "prompts", "copies",
    "constraint", "modes", "draws",
]  # fmt: skip
PARTS: tuple[Part, ...] = get_args(Part)
_ANSWERS: Mapping[Part, tuple[str, ...]] = {
    "alone": ("greedy", "again", "stream", "fewer", "names"),
    "crowd": ("crowd",),
    "scored": ("sampled", "scored"),
    "temperatures": ("plain", "cold", "hot"),
    "truncations": ("top_p", "top_k", "min_p"),
    "penalties": ("presence_penalty", "frequency_penalty", "repetition_penalty"),
    "endings": ("short", "stop"),
    "prompts": ("echo", "prompted"),
    "copies": ("choices", "seed", "otherseed", "seedstream"),
    "constraint": ("choice", "scoredchoice"),
    "modes": ("mode",),
    "draws": ("draws", "colddraws"),
}
"""What the answers of each part are called in the evidence."""
_WITHOUT_LOGPROBS: tuple[Part, ...] = ("alone", "crowd", "endings", "copies")
"""Parts that a server without logprobs can be asked."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long an audit may take."""

    seconds: float = 55.0
    """Of all wires together, of which each has its share; draws stop then, and so do further questions."""
    draws: int = 40
    """Answers that are drawn at temperature 1; half as many at another."""


class Interview:
    """Asks one wire everything; `evidence` has the answers."""

    def __init__(self, wire: Wire, pace: Pace, note: Callable[[str], None]) -> None:
        """pace: of this wire alone. note: called with what is being asked."""
        self._wire = wire
        self._pace = pace
        self._note = note
        self._end = time.monotonic() + pace.seconds
        self._open = list(wire.facts.prompts[:2])
        facts = wire.facts
        self.evidence = Evidence(facts.name, facts.width, facts.vocab_size, facts.modes)

    async def run(self, parts: Collection[Part] = PARTS) -> Evidence:
        """Ask these parts, in the order of `PARTS`. Raises `ConnectError`, `AccessDeniedError`."""
        asked: Mapping[Part, Callable[[], Awaitable[None]]] = {
            "alone": self._alone,
            "crowd": self._crowd,
            "scored": self._scored,
            "temperatures": self._temperatures,
            "truncations": self._truncations,
            "penalties": self._penalties,
            "endings": self._endings,
            "prompts": self._prompts,
            "copies": self._copies,
            "constraint": self._constraint,
            "modes": self._modes,
            "draws": self._draws,
        }
        if reason := self._wire.facts.no_logprobs:
            skipped = [one for one in PARTS if one not in _WITHOUT_LOGPROBS]
            self.evidence.omitted |= {name: f"no logprobs: {reason}" for one in skipped for name in _ANSWERS[one]}
            parts = [one for one in parts if one in _WITHOUT_LOGPROBS]
        for part in [one for one in PARTS if one in parts]:
            if time.monotonic() > self._end:
                reason = f"{self._pace.seconds:g} s were over before it could be asked"
                self.evidence.omitted |= dict.fromkeys(_ANSWERS[part], reason)
                continue
            self._note(f"{self.evidence.wire}: {part}")
            await asked[part]()
        return self.evidence

    @property
    def _prompts_given(self) -> tuple[str | tuple[int, ...], ...]:
        return self._wire.facts.prompts

    async def _ask(self, name: str, question: Question) -> Answer:
        answer = await self._wire.ask(question)
        self.evidence.add(name, [answer])
        return answer

    async def _gather(self, name: str, questions: Sequence[Question], at_once: int = AT_ONCE) -> list[Answer]:
        """Answers to questions, a few in flight at a time, until the time is over."""
        found: list[Answer] = []
        for start in range(0, len(questions), at_once):
            if start and time.monotonic() > self._end:
                break
            answers = await asyncio.gather(*map(self._wire.ask, questions[start : start + at_once]))
            self.evidence.add(name, answers)
            found += answers
            if any(one.refusal for one in answers):
                break
        return found

    def _greedy(self, number: int) -> Question:
        return Question(self._prompts_given[number], TOKENS)

    async def _alone(self) -> None:
        for number in range(len(self._prompts_given)):
            question = self._greedy(number)
            await self._ask(f"greedy/{number}", question)
            await self._ask(f"again/{number}", question)
            await self._ask(f"stream/{number}", replace(question, stream=True))
        if self._wire.facts.width:
            fewer = max(1, min(2, self._wire.facts.width - 1))
            await self._ask("fewer/0", replace(self._greedy(0), alternatives=fewer))
        if self._wire.facts.names_ids and self._wire.facts.text:
            await self._ask("names/0", replace(self._greedy(0), by_text=True))

    async def _crowd(self) -> None:
        """The same questions among others that sample, end early, and run longer."""
        own = [self._greedy(number) for number in range(len(self._prompts_given))]
        others = [
            Question(self._prompts_given[at % len(own)], TOKENS // 2 + at * 3, temperature=1.0)
            for at in range(NEIGHBOURS)
        ]
        neighbours = [asyncio.ensure_future(self._wire.ask(one)) for one in others]
        try:
            answers = await asyncio.gather(*map(self._wire.ask, own))
            await asyncio.gather(*neighbours)
        finally:
            for one in neighbours:
                one.cancel()
            await asyncio.gather(*neighbours, return_exceptions=True)
        for number, answer in enumerate(answers):
            self.evidence.add(f"crowd/{number}", [answer])

    async def _scored(self) -> None:
        """Greedy answers, and one that is sampled, scored behind their prompts."""
        sampled = await self._ask("sampled/s", Question(self._prompts_given[0], TOKENS, temperature=1.0))
        answers = [(f"{number}", self.evidence.first_of(f"greedy/{number}")) for number in range(3)]
        for name, answer in [*answers, ("s", sampled)]:
            if answer is not None and not answer.refusal and answer.only.tokens:
                self.evidence.add(f"scored/{name}", [await self._wire.score(answer)])

    async def _temperatures(self) -> None:
        """At the two prompts that most tokens may follow: elsewhere parameters change little."""
        candidates = (*self._prompts_given[:2], *self._wire.facts.openers)
        found = await asyncio.gather(*(self._wire.ask(Question(prompt, 1, temperature=1.0)) for prompt in candidates))
        self._open = [one.question.prompt for one in sorted(found, key=_certainty)[:2]]
        for number, prompt in enumerate(self._open):
            question = Question(prompt, 1, temperature=1.0)
            await self._ask(f"plain/{number}", question)
            await self._ask(f"cold/{number}", replace(question, temperature=COLD))
            await self._ask(f"hot/{number}", replace(question, temperature=HOT))

    async def _truncations(self) -> None:
        for number, prompt in enumerate(self._open):
            plain = self.evidence.first_of(f"plain/{number}")
            cut = None if plain is None or not plain.only.tokens else cut_of(plain.only.tokens[0])
            if cut is None:
                continue
            base = Question(prompt, 1, temperature=1.0)
            for name, value in (("top_k", cut.count), ("top_p", cut.top_p), ("min_p", cut.min_p)):
                question = replace(base, **{name: value})  # type: ignore[arg-type] # a field of its own type
                await self._gather(f"{name}/{number}", [question] * TRUNCATED_DRAWS)
            break

    async def _penalties(self) -> None:
        for name, value in (*PENALTIES, ("repetition_penalty", 1.3)):
            for number in (0, 2):
                question = replace(self._greedy(number), **{name: value})  # type: ignore[arg-type] # as above
                await self._ask(f"{name}/{number}", question)

    async def _endings(self) -> None:
        """Answers that must end by a stop, and by their length."""
        await self._ask("short/0", replace(self._greedy(0), max_tokens=3))
        greedy = self.evidence.first_of("greedy/0")
        if greedy is None:
            return
        text, ids = greedy.only.text, greedy.only.ids
        if text is not None and len(text) > 3:
            middle = len(text) // 2
            await self._ask("stop/0", replace(self._greedy(0), stop=text[middle : middle + 3]))
        elif text is None and ids and len(ids) > 2:
            await self._ask("stop/0", replace(self._greedy(0), stop_token_id=ids[2]))

    async def _prompts(self) -> None:
        question = self._greedy(0)
        await self._ask("echo/0", replace(question, echo=True))
        await self._ask("prompted/0", replace(question, prompt_logprobs=True))

    async def _copies(self) -> None:
        question = Question(self._prompts_given[0], TOKENS, temperature=1.0)
        await self._ask("choices/s", replace(question, n=4))
        await self._ask("choices/0", replace(self._greedy(0), n=2))
        for at, name in enumerate(("seed/a", "seed/b")):
            await self._ask(name, replace(question, seed=_SEED))
            await self._ask(f"otherseed/{at}", replace(question, seed=_SEED + 1 + at))
        await self._ask("seedstream/a", replace(question, seed=_SEED, stream=True))

    async def _constraint(self) -> None:
        for number, prompt in enumerate(self._open):
            question = Question(prompt, 12, temperature=1.0, choice=CHOICE)
            answer = await self._ask(f"choice/{number}", question)
            if not answer.refusal and answer.only.tokens:
                self.evidence.add(f"scoredchoice/{number}", [await self._wire.score(answer)])

    async def _modes(self) -> None:
        """LMTP's processed logprobs, which a request may ask for."""
        if not self._wire.facts.modes:
            return
        plain = self.evidence.first_of("plain/0")
        cut = None if plain is None or not plain.only.tokens else cut_of(plain.only.tokens[0])
        question = Question(self._open[0], 1, temperature=COLD, mode="processed")
        await self._ask("mode/cold", question)
        if cut is not None:
            await self._ask("mode/top_k", replace(question, temperature=1.0, top_k=cut.count))

    async def _draws(self) -> None:
        """Many sampled answers, each with a seed of its own where seeds are taken."""
        seeds = self.evidence.first("seed") is not None
        for name, temperature, count in (("draws", 1.0, self._pace.draws), ("colddraws", COLD, self._pace.draws // 2)):
            questions = [
                Question(self._open[at % len(self._open)], TOKENS, temperature=temperature, seed=at if seeds else None)
                for at in range(count)
            ]
            await self._gather(name, questions)


def _certainty(answer: Answer) -> float:
    """The logprob of the likeliest first token; 0 where none is known."""
    return max(answer.only.tokens[0].best.values(), default=0.0) if answer.only.tokens else 0.0
