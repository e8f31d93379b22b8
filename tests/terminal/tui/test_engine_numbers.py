"""What the inspector says of a thousand random tokens of a real server, beside full logits computed with torch."""

from __future__ import annotations

import asyncio
import math
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import torch
import transformers

from lmtool.core.logprobs.numbers import format_probability
from lmtool.core.logprobs.what_if import Knobs
from lmtool.core.types import ChatMessage, ChatPrompt, Constraint, GenerateRequest, SamplingParams
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.terminal.tui.app import InspectorApp
from lmtool.terminal.tui.documents.comparison import ComparisonDocument
from lmtool.terminal.tui.documents.tokens import DetailDocument
from lmtool.terminal.tui.documents.what_if import WhatIfDocument
from lmtool.terminal.tui.event_store import EventStore
from lmtool.terminal.tui.options import InspectorOptions
from lmtool.terminal.tui.screens.dialogs import ReadingScreen
from lmtool.terminal.tui.sources.connect import ConnectSource
from lmtool.terminal.tui.styles import UNICODE
from tests.terminal.tui.states import rows as text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from textual.pilot import Pilot

    from lmtool.terminal.tui.streams import Stream
    from lmtool.trace.events import Event

NEAR = 2e-4
"""Nats: our kernels and torch add in another order."""
TOKENS = 150
WORDS = "[a-z ]+"
PROMPT = "Tell me a story about a fox."
LETTERS = Constraint("regex", WORDS)
BIAS = {264: 3.0, 11: -5.0, 346: 1.5}
MASK = dict.fromkeys(range(300, 1536), -100.0)
SAMPLED = SamplingParams(max_tokens=TOKENS, ignore_eos=True, seed=7)


@dataclass(frozen=True)
class Case:
    """One stream: its parameters beside those of all."""

    name: str
    mode: str
    """Which distribution its logprobs are of."""
    sampling: dict[str, object] = field(default_factory=dict)
    constraint: Constraint | None = None

    def request(self) -> GenerateRequest:
        params = {name: getattr(SAMPLED, name) for name in SAMPLED.__slots__} | self.sampling
        return GenerateRequest(0, PROMPT, SamplingParams(**params), constraint=self.constraint)  # type: ignore[arg-type] # fields


CASES = (
    Case("warm", "raw", {"temperature": 0.9, "top_logprobs": 5}),
    Case("hot", "raw", {"temperature": 2.0, "top_logprobs": 1}),
    Case("alone", "raw", {"temperature": 1.5, "top_logprobs": 0}),
    Case("raw", "raw", {"temperature": 1.2, "top_logprobs": 6, "logprobs_mode": "raw", "logit_bias": BIAS}),
    Case("biased", "biased", {"temperature": 1.2, "top_logprobs": 8, "logit_bias": BIAS}),
    Case("masked", "biased", {"temperature": 1.5, "top_logprobs": 3, "logit_bias": MASK}),
    Case("letters", "biased", {"temperature": 1.3, "top_logprobs": 4}, LETTERS),
    Case(
        "shaped",
        "processed",
        {
            "temperature": 0.8, "top_k": 50, "top_logprobs": 20, "logprobs_mode": "processed",
            "repetition_penalty": 1.2, "frequency_penalty": 0.3,
        },
    ),
)  # fmt: skip


class Engine:
    """The embedded model, asked with torch."""

    def __init__(self) -> None:
        self.tokenizer = load_tokenizer(str(MODEL_DIR))
        self._model = transformers.AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32).eval()
        self._eos = self._model.generation_config.eos_token_id
        pieces = [self.tokenizer.piece(i) for i in range(self._model.config.vocab_size)]
        self.allowed = torch.tensor([re.fullmatch(WORDS.encode(), piece) is not None for piece in pieces])

    @torch.no_grad()
    def logits(self, prompt: Sequence[int], own: Sequence[int]) -> torch.Tensor:
        """[n, V] float64: what each of n tokens was chosen from."""
        found = self._model(torch.tensor([[*prompt, *own]])).logits[0].double()
        return found[len(prompt) - 1 : -1]

    def distributions(
        self, request: GenerateRequest, prompt: Sequence[int], own: Sequence[int], mode: str
    ) -> torch.Tensor:
        """[n, V] float64, nats: log-probabilities as the request's `logprobs_mode` has them."""
        logits = self.logits(prompt, own)
        if mode != "raw":
            for token, bias in request.sampling.logit_bias.items():
                logits[:, token] += bias
            if request.constraint is not None:
                ends = logits[1:, self._eos].clone()
                logits[:, ~self.allowed] = -math.inf
                logits[1:, self._eos] = ends  # as soon as there is a letter, the text may end
        if mode == "processed":
            for place, row in enumerate(logits):
                _shape(row, request.sampling, prompt, own[:place])
        return logits.log_softmax(-1)


def _shape(row: torch.Tensor, sampling: SamplingParams, prompt: Sequence[int], own: Sequence[int]) -> None:
    """Penalties, temperature, top-k. row: [V], changed in place."""
    seen = torch.tensor(sorted({*prompt, *own}))
    values, penalty = row[seen], sampling.repetition_penalty
    row[seen] = torch.where(values > 0, values / penalty, values * penalty)
    for token in own:
        row[token] -= sampling.frequency_penalty
    row /= sampling.temperature
    row[row < row.topk(sampling.top_k).values[-1]] = -math.inf


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The reference, loaded once."""
    return Engine()


class News(EventStore):
    """Says when something came."""

    def __init__(self) -> None:
        super().__init__()
        self.came = asyncio.Event()

    def feed(self, events: Sequence[Event]) -> None:
        super().feed(events)
        self.came.set()


@dataclass
class Seen:
    """The inspector while it watches a real server."""

    app: InspectorApp
    pilot: Pilot[int]
    lines: News

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self.lines.came.clear()
                await self.lines.came.wait()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def ended(self, count: int) -> Stream:
        """The latest stream, once so many have ended and the cursor is on it."""
        streams = self.app.view.state.streams
        await self.until(lambda: sum(stream.ended is not None for stream in streams) == count)
        assert [stream.error for stream in streams] == [None] * count
        return streams[-1]

    async def generate(self, request: GenerateRequest) -> Stream:
        count = len(self.app.view.state.streams) + 1
        assert self.app.source is not None
        await self.app.source.send(request)
        return await self.ended(count)

    async def asks(self, stream: Stream, *keys: str, row: int | None = None) -> Stream:
        """Press keys with the cursor on a stream, or on one of its tokens; the stream that comes of it."""
        count = len(self.app.view.state.streams) + 1
        self.app.view.choose_stream(stream.index)
        if row is not None:
            self.app.view.choose_token(row)
        await self.press(*keys)
        made = await self.ended(count)
        await self.pilot.pause()
        return made

    async def compared(self, stream: Stream) -> ComparisonDocument:
        """What `=` opens with the cursor on a stream."""
        self.app.view.choose_stream(stream.index)
        await self.press("=")
        screen = self.app.screen
        assert isinstance(screen, ReadingScreen)
        found = screen.document
        assert isinstance(found, ComparisonDocument)
        await self.press("escape")
        return found

    def ids(self, stream: Stream) -> tuple[int, ...]:
        return tuple(self.app.view.state.tokens.ids[row] for row in stream.rows)


@asynccontextmanager
async def inspecting(url: str, engine: Engine) -> AsyncIterator[Seen]:
    """The inspector, without a terminal, on a server."""
    lines = News()
    source = ConnectSource(url, pytest.fail, find_tokenizer=lambda _info: engine.tokenizer)
    app = InspectorApp(lines, source, InspectorOptions())
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            seen = Seen(app, pilot, lines)
            await seen.until(lambda: app.view.state.vocab_size is not None)
            yield seen
    finally:
        await source.close()
        lines.close()
    if app.failure is not None:
        raise app.failure


def prompt_of(engine: Engine) -> tuple[int, ...]:
    """What a typed prompt becomes."""
    return tuple(engine.tokenizer.encode_prompt(ChatPrompt((ChatMessage("user", PROMPT),))))


def entropy(logprobs: torch.Tensor) -> float:
    """Bits. logprobs: [V]."""
    known = logprobs[logprobs > -math.inf]
    return float(-(known.exp() * known).sum() / math.log(2))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_what_is_said_of_each_token(case: Case, embedded: str, engine: Engine) -> None:
    """Probability, rank, mass and entropy are those of the whole distribution, or true bounds of them."""
    async with inspecting(embedded, engine) as seen:
        request = case.request()
        stream, view = await seen.generate(request), seen.app.view
        own, prompt = seen.ids(stream), prompt_of(engine)
        assert len(own) == TOKENS
        assert stream.logprobs_mode == case.mode
        exact = engine.distributions(request, prompt, own, case.mode)
        asked = request.sampling.top_logprobs
        for row, token, true in zip(stream.rows, own, exact, strict=True):
            logprob, found = view.state.tokens.logprob(row), view.measures.distribution(row)
            assert logprob == pytest.approx(float(true[token]), abs=NEAR)
            likelier = [int((true > true[token] + shift).sum()) for shift in (NEAR, -NEAR)]
            ranks = range(likelier[0] + 1, max(likelier) + 2)
            if found.rank is None:
                assert asked == 0
            elif found.rank.exact:
                assert found.rank.place in ranks
            else:
                assert found.rank.place <= ranks[-1]
                assert found.rank.place == asked + 1  # nothing more can be known
            assert asked == 0 or (found.rank is not None and found.rank.exact) or ranks[-1] > asked
            best = true.topk(max(1, len(found.top))).values[: len(found.top)].exp().sum()
            assert found.mass == pytest.approx(float(best), abs=NEAR)
            bounds = found.entropy(view.state.vocab_size)
            assert bounds is not None
            assert bounds[0] - 2e-3 <= entropy(true) <= bounds[1] + 2e-3
        gathered = exact.gather(1, torch.tensor(own).unsqueeze(1)).mean()
        assert stream.perplexity(TOKENS) == pytest.approx(math.exp(-float(gathered)), rel=1e-3)
        for row in stream.rows[::10]:
            _is_drawn(seen, row, exact[view.position(row)])


def _is_drawn(seen: Seen, row: int, true: torch.Tensor) -> None:
    """The token pane says so: probability, rank, and a bar of its length for each alternative."""
    view = seen.app.view
    view.choose_token(row)
    shown = text_of(DetailDocument(view, UNICODE), 60)
    token = view.state.tokens.ids[row]
    assert _near(shown, r"^p (\S+)", float(true[token].exp()))
    rank = view.measures.rank(row)
    assert rank is None or f"rank {rank}" in "\n".join(shown)
    bars = [line for line in shown if re.search(r"^[ ▸]('|\"|⟨|<\|)", line)]
    values = [float(true[one].exp()) for one, _ in view.measures.alternatives(row) if isinstance(one, int)]
    told = [
        float(line.replace("◀", "").split()[-2 if i < len(view.measures.distribution(row).top) else -1])
        for i, line in enumerate(bars)
    ]
    assert told == [pytest.approx(p, abs=6e-4, rel=0.06) for p in values]


def _near(lines: Sequence[str], pattern: str, p: float) -> bool:
    found = next(match for line in lines if (match := re.search(pattern, line)) is not None)
    return found[1] in {format_probability(max(0.0, min(1.0, p * (1 + shift)))) for shift in (-NEAR, 0, NEAR)}


async def test_what_if_is_what_the_server_does(embedded: str, engine: Engine) -> None:
    """With other parameters and the same seed the server leaves the stream where that was foretold without it."""
    async with inspecting(embedded, engine) as seen:
        first = await seen.generate(Case("", "raw", {"temperature": 1.0, "top_logprobs": 100}).request())
        foretold = WhatIfDocument(seen.app.view, first, UNICODE)
        for knobs in (Knobs(0.6), Knobs(1.4), Knobs(1.0, 0.8), Knobs(1.0, 1.0, 3), Knobs(1.0, 1.0, 0, 0.2)):
            foretold.knobs, foretold._steps = knobs, []
            while foretold.advance(1.0):
                pass
            assert not foretold.no_draws
            changes = {name: getattr(knobs, name) for name in ("temperature", "top_p", "top_k", "min_p")}
            other = await seen.generate(Case("", "raw", {**changes, "top_logprobs": 1}).request())
            pairs = list(zip(seen.ids(first), seen.ids(other), foretold._steps, strict=True))
            parting = next((i for i, (one, two, _) in enumerate(pairs) if one != two), None)
            for _, token, drawn in pairs[: len(pairs) if parting is None else parting + 1]:
                assert drawn is not None
                assert drawn.token in (token, None)
                assert token in drawn.possible or drawn.other
            place = foretold.first_other()
            assert place is None or place == parting or drawn.token is None
            assert sum(drawn.token is None for _, _, drawn in pairs) < len(pairs) / 4


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_score_is_the_generation_again(case: Case, embedded: str, engine: Engine) -> None:
    """`S` and enter score the stream's own ids after its own prompt; `=` aligns both and finds the numbers equal.

    Where they were of another distribution than the model's own, it says so, and the differences are what they are.
    """
    async with inspecting(embedded, engine) as seen:
        request = case.request()
        stream = await seen.generate(request)
        scored = await seen.asks(stream, "S", "enter")
        own, prompt = seen.ids(stream), prompt_of(engine)
        assert seen.ids(scored) == own
        raw, exact = (engine.distributions(request, prompt, own, mode) for mode in ("raw", case.mode))
        logprobs = [seen.app.view.state.tokens.logprobs[row] for row in scored.rows]
        assert logprobs == pytest.approx([float(row[token]) for row, token in zip(raw, own, strict=True)], abs=NEAR)
        found = (await seen.compared(scored)).result
        assert found.alignment.pairs == list(zip(stream.rows, scored.rows, strict=True))
        apart = [abs(float(x[token] - y[token])) for x, y, token in zip(raw, exact, own, strict=True)]
        assert found.worst == pytest.approx(max(apart), abs=2 * NEAR)
        if case.mode == "raw":
            assert found.worst == 0
            assert found.notes == ()
        else:
            assert f"A {case.mode}" in found.notes[0]
        for least, x, y in zip(found.divergences, exact, raw, strict=True):
            true = float((x.exp() * (x - y)).nan_to_num(0.0).sum())
            assert least is None or least <= true + 1e-3


async def test_an_edited_score(embedded: str, engine: Engine) -> None:
    """What a person leaves keeps its ids, what they type is cut as what follows; the numbers are those of that text."""
    async with inspecting(embedded, engine) as seen:
        stream = await seen.generate(CASES[0].request())
        scored = await seen.asks(stream, "S", "home", *["delete"] * 5, "S", "o", "enter")
        own, again = seen.ids(stream), seen.ids(scored)
        kept = next(n for n in range(len(own), 0, -1) if again[-n:] == own[-n:])
        assert len(own) - kept < 6
        assert seen.app.view.state.text(scored) == f"So{seen.app.view.state.text(stream)[5:]}"
        raw = engine.distributions(CASES[0].request(), prompt_of(engine), again, "raw")
        logprobs = [seen.app.view.state.tokens.logprobs[row] for row in scored.rows]
        assert logprobs == pytest.approx([float(row[token]) for row, token in zip(raw, again, strict=True)], abs=NEAR)
        assert (await seen.compared(scored)).result.alignment.places == (0, 0)


@pytest.mark.parametrize("place", [0, 3, 40])
async def test_a_branch_follows_its_parent(place: int, embedded: str, engine: Engine) -> None:
    """A branch's first distribution is the one that its parent had there, and `=` parts them where they part."""
    async with inspecting(embedded, engine) as seen:
        request, view = CASES[0].request(), seen.app.view
        parent = await seen.generate(request)
        own, prompt = seen.ids(parent), prompt_of(engine)
        row, after = parent.rows[place], parent.rows[place + 1]
        at = [token for token, _ in view.measures.alternatives(row)].index(own[place])
        view.choose_token(row)
        same = await seen.asks(parent, "3", *["j"] * at, "b", row=row)
        assert dict(view.measures.alternatives(same.rows[0])[:5]) == dict(view.measures.alternatives(after)[:5])
        assert (await seen.compared(same)).result.alignment.same >= place + 1

        instead = next(token for token, _ in view.measures.alternatives(row) if token != own[place])
        assert isinstance(instead, int)
        at = [token for token, _ in view.measures.alternatives(row)].index(instead)
        other = await seen.asks(parent, "3", *["j"] * at, "b", row=row)
        exact = engine.distributions(request, [*prompt, *own[:place], instead], seen.ids(other), "raw")
        logprobs = [view.state.tokens.logprobs[one] for one in other.rows]
        assert logprobs == pytest.approx(
            [float(x[token]) for x, token in zip(exact, seen.ids(other), strict=True)], abs=NEAR
        )
        found = (await seen.compared(other)).result
        assert (found.alignment.same, found.alignment.parts) == (place, True)
        assert found.alignment.names == (own[place], instead)
        assert found.candidates == (
            dict(view.measures.alternatives(row))[own[place]],
            dict(view.measures.alternatives(row))[instead],
        )

        out = await seen.asks(parent, "3", *["j"] * at, "x", row=row)
        whole = dict(view.measures.alternatives(row))
        left = math.log1p(-math.exp(whole[instead]))
        for token, logprob in view.measures.alternatives(out.rows[0]):
            assert token != instead
            if token in whole:
                assert logprob == pytest.approx(whole[token] - left, abs=NEAR)
        found = (await seen.compared(out)).result
        assert found.alignment.same >= place
        assert "two kinds" in found.notes[0]


def test_a_thousand_tokens() -> None:
    """What this file promises."""
    assert len(CASES) * TOKENS >= 1000
