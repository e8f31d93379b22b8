"""Constraints behind a thought: nothing of the thought is held to them, all of the answer is; budgets are kept."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from lmtool.core import constraint
from lmtool.core.errors import ConstraintError, ServerError
from lmtool.core.interfaces import Guide
from lmtool.core.reasoning import ThoughtMarks
from lmtool.core.types import Constraint, TokenizerInfo
from lmtool.inference.guide.compiler import MatcherCompiler
from lmtool.inference.guide.llguidance import read_tokenizer
from lmtool.inference.text.harmony import HarmonyChannels
from lmtool.inference.text.reasoning_parser import Beginning
from lmtool.inference.text.thought_reader import MarkedThoughts
from lmtool.inference.text.tokenizer import TextTokenizer, load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR
from tests.inference.guide.following import EOS, TOKENIZER, VOCAB, WORDS, mask_of

THINK = MarkedThoughts("think")
TEXT = load_tokenizer(str(MODEL_DIR))
FORMS: dict[str, Constraint] = {
    "schema": constraint.json_schema(
        {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["a"],
            "additionalProperties": False,
        }
    ),
    "regex": constraint.regex(r"\n?[<a-z]{1,9}"),
    "choice": constraint.choice(["<think>", "<b>yes</b>", "\n\nno"]),
}
MATCH = {
    "schema": lambda text: isinstance(json.loads(text)["a"], int),
    "regex": lambda text: 1 <= len(text.removeprefix("\n")) <= 9,
    "choice": lambda text: text in ["<think>", "<b>yes</b>", "\n\nno"],
}


@pytest.fixture(scope="module")
def compiler() -> Iterator[MatcherCompiler]:
    """Of the embedded model, whose marks are several tokens of text."""
    made = MatcherCompiler(TOKENIZER, VOCAB, EOS)
    yield made
    made.close()


def thought(beginning: Beginning = "open", budget: int | None = None, parser: MarkedThoughts = THINK) -> ThoughtMarks:
    found = parser.thought_marks(beginning, TEXT.encode_continuation, budget, constrained=True)
    assert found is not None
    return found


def guide_of(compiler: MatcherCompiler, form: Constraint | None, before: ThoughtMarks) -> Guide:
    return compiler.compile(form, before).result(60)


def draw(compiler: MatcherCompiler, guide: Guide, script: list[int], seed: int, *, jump: bool) -> list[int]:
    """Ids as a model would give them that wants to write the script, and later anything; checked at every step."""
    rng, ids = random.Random(seed), []
    while len(ids) < 120:
        for token in guide.forced() if jump else ():
            guide.advance(token)
            ids.append(token)
        allowed = mask_of(compiler, guide)
        assert guide.error() is None
        wanted = script[len(ids)] if len(ids) < len(script) else -1
        tokens = np.flatnonzero(allowed).tolist()
        ends = [token for token in tokens if token in EOS]
        token = wanted if wanted in tokens else rng.choice(ends if ends and guide.may_end() else tokens)
        probe = rng.randrange(VOCAB)
        agrees = guide.accepts([probe]) == allowed[probe]
        assert agrees or not guide.accepts([probe])  # while it is open whether there is a thought, none is foretold
        ids.append(token)
        guide.advance(token)
        assert guide.error() is None
        if token in EOS:
            return ids
    return ids


def split(ids: list[int], beginning: Beginning, parser: MarkedThoughts = THINK) -> tuple[str, str]:
    reader = parser.reader(beginning, constrained=True)
    piece, rest = reader.push(TEXT.decode(ids)), reader.finish()
    return piece.reasoning + rest.reasoning, piece.answer + rest.answer


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parser", [THINK, MarkedThoughts("m", "[THINK]", "[/THINK]", "")], ids=["think", "m"])
@pytest.mark.parametrize("jump", [True, False])
def test_a_constraint_begins_where_the_thought_ends(
    compiler: MatcherCompiler, form: str, parser: MarkedThoughts, jump: bool
) -> None:
    """Whatever the thought is: the answer matches, and is the same to the reader of its text."""
    for seed, said in enumerate(("Hm.\n", "a < b </", "</thin", '{"a": "b"}\n<|', "é" * 3, "")):
        before = thought("open", None, parser)
        script = TEXT.encode_continuation(said + parser.end)
        ids = draw(compiler, guide_of(compiler, FORMS[form], before), script, seed, jump=jump)
        assert ids[-1] in EOS
        thinks, answer = split(ids, "open", parser)
        assert thinks == said.strip()
        assert MATCH[form](answer)


@pytest.mark.parametrize("form", FORMS)
def test_the_model_may_think_or_answer(compiler: MatcherCompiler, form: str) -> None:
    """Where the prompt leaves it open: with the opening mark it thinks, with anything else it answers."""
    script = TEXT.encode_continuation("<think>\nHm.</think>")
    ids = draw(compiler, guide_of(compiler, FORMS[form], thought("undecided")), script, 0, jump=True)
    thinks, answer = split(ids, "undecided")
    assert thinks == "Hm."
    assert MATCH[form](answer)
    for seed in range(12):  # at random: few begin a mark, and what begins one and cannot be an answer goes on with it
        ids = draw(compiler, guide_of(compiler, FORMS[form], thought("undecided", 20)), [], seed, jump=seed % 2 == 0)
        if ids[-1] in EOS:
            assert MATCH[form](split(ids, "undecided")[1])


def test_an_answer_may_begin_like_a_mark(compiler: MatcherCompiler) -> None:
    """`<b>yes</b>` begins as `<think>` does."""
    script = TEXT.encode_continuation("<b>yes</b>")
    assert TEXT.decode(script[:1]) == "<"
    ids = draw(compiler, guide_of(compiler, FORMS["choice"], thought("undecided")), script, 0, jump=False)
    assert split(ids, "undecided") == ("", "<b>yes</b>")


@pytest.mark.parametrize("budget", [0, 1, 7])
@pytest.mark.parametrize("beginning", ["open", "undecided"])
@pytest.mark.parametrize("form", [None, *FORMS])
def test_a_thought_ends_at_its_budget(
    compiler: MatcherCompiler, budget: int, beginning: Beginning, form: str | None
) -> None:
    """In the middle of a word, with the closing mark; and 0 is no thought at all."""
    before = thought(beginning, budget)
    script = TEXT.encode_continuation(("<think>" if beginning == "undecided" else "") + "one two three " * 20)
    guide = guide_of(compiler, None if form is None else FORMS[form], before)
    ids = draw(compiler, guide, script, 3, jump=True)
    begun = len(TEXT.encode_continuation("<think>")) if beginning == "undecided" and budget else 0
    written = list(before.empty or before.ending) if budget == 0 else list(before.ending)
    first = begun + budget
    assert ids[first : first + len(written)] == written
    if form is not None:
        assert MATCH[form](split(ids, beginning)[1])


def test_no_end_before_the_answer(compiler: MatcherCompiler) -> None:
    """With a constraint no eos id ends the thought; without one the stream is the model's own matter."""
    held, free = guide_of(compiler, FORMS["schema"], thought()), guide_of(compiler, None, thought(budget=9))
    assert not mask_of(compiler, held)[list(EOS)].any()
    assert not held.may_end()
    assert mask_of(compiler, free).all()
    assert free.may_end()
    held.advance(EOS[0])
    assert isinstance(held.error(), ServerError)
    assert {*np.flatnonzero(mask_of(compiler, held))} == {*EOS}  # as of any guide that cannot go on


def test_a_token_over_the_mark(compiler: MatcherCompiler) -> None:
    """A token that closes the thought and begins the answer cannot be enforced to a constraint: it is not picked."""
    parser = MarkedThoughts("m", "#", "#so", " n")
    guide = guide_of(compiler, FORMS["regex"], thought("open", None, parser))
    for token in TEXT.encode_continuation("um #s"):
        guide.advance(token)
    allowed = mask_of(compiler, guide)
    behind = [token for token in range(VOCAB) if TEXT.piece(token).startswith(b"o")]
    over = [token for token in behind if not b"o n".startswith(TEXT.piece(token))]
    assert over
    assert not allowed[over].any()
    assert allowed[[token for token in behind if token not in over]].all()
    free = mask_of(compiler, guide_of(compiler, None, thought("open", 9, parser)))
    assert free.all()


def test_drafts(compiler: MatcherCompiler) -> None:
    """Masks of a draft that leads from the thought into the answer are those of its steps."""
    ids = TEXT.encode_continuation("so</think>\n\n") + TEXT.encode_continuation('{"a":12}')
    guide = guide_of(compiler, FORMS["schema"], thought())
    assert guide.accepts(ids) == len(ids)
    wrong = [*ids[:-3], *TEXT.encode_continuation("xyz")]
    legal = guide.accepts(wrong)
    assert legal == len(ids) - 3
    mask = np.zeros((len(wrong) + 1, WORDS), np.int32)
    compiler.fill_drafts([(guide, 0, wrong)], mask)
    alone = guide.fork()
    for at in range(legal + 1):
        row = np.unpackbits(mask[at].view(np.uint8), bitorder="little")[:VOCAB].astype(bool)
        assert (row == mask_of(compiler, alone)).all()
        alone.advance(wrong[at])
    assert (mask[legal + 1 :] == -1).all()
    assert guide.accepts(ids) == len(ids)  # it stayed where it was


def test_a_fork_is_independent(compiler: MatcherCompiler) -> None:
    """In the thought, in its opening mark, and in the answer."""
    script = TEXT.encode_continuation("<think>so</think>\n\n") + TEXT.encode_continuation('{"a":')
    guide = guide_of(compiler, FORMS["schema"], thought("undecided"))
    for token in script:
        fork, before = guide.fork(), mask_of(compiler, guide)
        assert (mask_of(compiler, fork) == before).all()
        fork.advance(token)
        assert (mask_of(compiler, guide) == before).all()
        guide.advance(token)
    assert guide.error() is None


def test_errors_of_the_constraint(compiler: MatcherCompiler) -> None:
    """One that cannot be compiled is refused; so is all of a compiler that is closed."""
    with pytest.raises(ConstraintError):
        guide_of(compiler, constraint.regex("("), thought())
    closed = MatcherCompiler(TOKENIZER, VOCAB, EOS)
    closed.close()
    with pytest.raises(ServerError, match="stopped"):
        guide_of(closed, None, thought(budget=3))


def special_marks() -> Tokenizer:
    """A byte-level tokenizer whose marks are tokens of their own: Qwen's, which show as text, and GPT-OSS's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({one: at for at, one in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|return|>"])
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False)])
    return tokenizer


def test_marks_that_are_tokens() -> None:
    """Whether they show as text or not, and wherever they stand in the vocabulary."""
    tokenizer = special_marks()
    text = TextTokenizer(tokenizer, TokenizerInfo("marks", "0"), named_tokens={"eos_token": "<|return|>"})
    seen = read_tokenizer(text.to_json(), 300, [tokenizer.token_to_id("<|return|>")])
    for token in range(256, tokenizer.get_vocab_size()):
        assert seen.decode_bytes([token]).decode() == tokenizer.id_to_token(token)
    eos = tokenizer.token_to_id("<|return|>")
    compiler = MatcherCompiler(text.to_json(), 300, [eos])
    try:
        for parser, said in (
            (THINK, "<think>\nHm.\n</think>\n\n"),
            (
                HarmonyChannels(),
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>",
            ),
            (HarmonyChannels(), "<|channel|>final <|constrain|>json<|message|>"),
        ):
            before = parser.thought_marks("undecided", text.encode_continuation, None, constrained=True)
            assert before is not None
            guide = compiler.compile(FORMS["schema"], before).result(60)
            ids = text.encode_continuation(said)
            assert guide.accepts(ids) in {0, len(ids)}
            for token in ids:
                guide.advance(token)
            assert guide.forced() == text.encode_continuation('{"a":')
            bounded = compiler.compile(None, replace(before, budget=0)).result(60)
            assert bounded.forced() == list(before.empty)
    finally:
        compiler.close()
