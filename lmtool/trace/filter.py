"""Filter expressions for streams and tokens, such as `sid:3 p<.1 | err "text" !/re/`; parsed once, tested per token."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from lmtool.core.errors import UsageError
from lmtool.core.logprobs.distribution import Rank

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

LONGEST = 1000
"""Characters of an expression."""
_DEEPEST = 50


class Facts(Protocol):
    """Properties that a filter tests; None if unknown, such as a token's properties when a stream is tested."""

    @property
    def sid(self) -> str:
        """Label of the stream, such as `1/3`."""

    @property
    def conn(self) -> int:
        """Number of the connection."""

    @property
    def model(self) -> str | None:
        """The requested model."""

    @property
    def kind(self) -> str:
        """`gen`, `score`, `chat`, `text`."""

    @property
    def state(self) -> str:
        """State or ending of the stream: `waiting`, `running`, `stop`, `length`, `cancelled`, `error`, `unfinished`."""

    @property
    def p(self) -> float | None:
        """Probability of the token."""

    @property
    def bits(self) -> float | None:
        """Surprisal of the token in bits."""

    @property
    def rank(self) -> Rank | None:
        """Rank of the token, or a lower bound."""

    @property
    def gap(self) -> float | None:
        """Milliseconds since the stream's previous token; tokens of one frame arrive together."""

    @property
    def tok(self) -> int | None:
        """Token id."""

    @property
    def text(self) -> str | None:
        """Text of the token."""

    @property
    def is_thought(self) -> bool | None:
        """True if the token belongs to the model's reasoning."""


Test: TypeAlias = "Callable[[Facts], bool | None]"

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "=": operator.eq,
}  # fmt: skip
_NAMES = ("sid", "conn", "model", "kind", "state", "tok")
_KINDS = ("gen", "score", "chat", "text")
_STATES: Mapping[str, frozenset[str]] = {
    **{
        name: frozenset([name]) for name in ("waiting", "running", "stop", "length", "cancelled", "error", "unfinished")
    },
    "err": frozenset(["error", "unfinished"]),
    "run": frozenset(["waiting", "running"]),
    "done": frozenset(["stop", "length", "cancelled"]),
}
_FLAGS = ("err", "run", "done")
_UNITS: Mapping[str, Mapping[str, float]] = {
    "p": {"": 1, "%": 0.01},
    "bits": {"": 1, "b": 1},
    "rank": {"": 1},
    "gap": {"": 1, "ms": 1, "s": 1000},
}
_WORD = re.compile(
    r"""\s*(?:(?P<mark>[|!()])|"(?P<text>(?:[^"\\]|\\.)*)"|/(?P<regex>(?:[^/\\]|\\.)*)/"""
    r"""|(?P<name>[a-z]+)(?P<sign><=|>=|<|>|=|:)(?P<value>[^\s|()]*)|(?P<word>[^\s|!()"]+))"""
)
FORMS = (
    'sid:3 conn:1 model:NAME kind:score state:err tok:262 p<.1 bits>5 rank>3 gap>50ms "text" /regex/ thought err run'
    " done · | or · ! not · ( )"
)
"""All forms of conditions, for messages and help."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed expression."""

    source: str
    names: frozenset[str]
    """Members of `Facts` that it tests."""
    _test: Test

    def token(self, facts: Facts) -> bool:
        """True if a token matches."""
        return self._test(facts) is True

    def stream(self, facts: Facts) -> bool:
        """True if a stream may have matching tokens; conditions on tokens count as possible."""
        return self._test(facts) is not False


def parse(source: str) -> Filter:
    """Parse an expression; an empty one matches everything. Raises `UsageError` that quotes the mistake."""
    if len(source) > LONGEST:
        raise UsageError(f"the filter has {len(source)} characters; at most {LONGEST}")
    parser = _Parser(source)
    return Filter(source, frozenset(parser.names), parser.whole())


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self.names: set[str] = set()
        self._words = _split(source, self.names)
        self._at = 0
        self._depth = 0

    def whole(self) -> Test:
        test = self._any() if self._words else lambda _: True
        if self._at < len(self._words):
            raise _error(self._source, f"{self._words[self._at][0]!r} does not fit there")
        return test

    def _any(self) -> Test:
        tests = [self._all()]
        while self._next("|"):
            tests.append(self._all())
        return tests[0] if len(tests) == 1 else _negated(_both([_negated(one) for one in tests]))

    def _all(self) -> Test:
        tests = [self._one()]
        while self._at < len(self._words) and self._words[self._at][0] not in ("|", ")"):
            tests.append(self._one())
        return tests[0] if len(tests) == 1 else _both(tests)

    def _one(self) -> Test:
        if self._next("!"):
            return self._deeper(lambda: _negated(self._one()))
        if self._next("("):
            return self._deeper(self._in_parentheses)
        if self._at == len(self._words):
            raise _error(self._source, "it ends too early")
        word, test = self._words[self._at]
        if test is None:
            raise _error(self._source, f"{word!r} does not fit there")
        self._at += 1
        return test

    def _in_parentheses(self) -> Test:
        test = self._any()
        if not self._next(")"):
            raise _error(self._source, "a ) is missing")
        return test

    def _deeper(self, parse: Callable[[], Test]) -> Test:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _error(self._source, "it is nested too deeply")
        try:
            return parse()
        finally:
            self._depth -= 1

    def _next(self, mark: str) -> bool:
        matches = self._at < len(self._words) and self._words[self._at] == (mark, None)
        self._at += matches
        return matches


def _split(source: str, names: set[str]) -> list[tuple[str, Test | None]]:
    """Words and their tests; operators have none."""
    words: list[tuple[str, Test | None]] = []
    at = 0
    while source[at:].strip():
        match = _WORD.match(source, at)
        if match is None:
            raise _error(source, f"{source[at:].strip()[:20]!r} cannot be read")
        at = match.end()
        words.append((match["mark"], None) if match["mark"] else (match.group().strip(), _term(source, match, names)))
    return words


def _term(source: str, match: re.Match[str], names: set[str]) -> Test:
    word = match["word"]
    if word is not None and word[0] in "<>=:":
        raise _error(
            source, f"no name before {word}; write it without blanks, as in p<.1, or in quotes to search for text"
        )
    if match["name"] is not None:
        names.add(match["name"])
        return _named(source, match["name"], match["sign"], match["value"])
    if word in _FLAGS:
        names.add("state")
        return _among("state", _STATES[word])
    if word == "thought":
        names.add("is_thought")
        return _known("is_thought", bool)
    if word is not None and re.fullmatch(r"\d+/\S+", word):
        names.add("sid")
        return _among("sid", {word})
    names.add("text")
    if match["regex"] is None:
        low = (word if word is not None else re.sub(r"\\(.)", r"\1", match["text"])).lower()
        return _known("text", lambda text: low in text.lower())
    try:
        pattern = re.compile(match["regex"])
    except (re.error, OverflowError, RecursionError) as error:
        raise _error(source, f"/{match['regex']}/ is not a valid regular expression: {error}") from None
    return _known("text", lambda text: pattern.search(text) is not None)


def _named(source: str, name: str, sign: str, value: str) -> Test:
    if not value:
        raise _error(source, f"no value after {name}{sign}; write it without blanks, as in sid:3")
    if name in _UNITS and sign in _COMPARE:
        return _compared(name, _COMPARE[sign], _number(source, name, sign, value))
    if name not in _NAMES or sign not in (":", "="):
        raise _error(source, f"{name}{sign}{value} is not known")
    if name in ("conn", "tok"):
        if not value.isdecimal():
            raise _error(source, f"{value!r} after {name}{sign} is not a whole number")
        return _compared(name, operator.eq, int(value)) if name == "tok" else _among(name, {int(value)})
    if name in ("state", "kind"):
        known = _STATES if name == "state" else {kind: {kind} for kind in _KINDS}
        if value.lower() not in known:
            raise _error(source, f"{value!r} is not a {name}; expected one of {', '.join(known)}")
        return _among(name, known[value.lower()])
    if name == "sid":  # `3` is any connection's stream 3, `1/3` one connection's
        return lambda facts: facts.sid == value or ("/" not in value and facts.sid.partition("/")[2] == value)
    return _among(name, {value})


def _number(source: str, name: str, sign: str, value: str) -> float:
    number = re.fullmatch(r"(\d+\.?\d*|\.\d+)(e-?\d+)?([a-z%]*)", value)
    units = _UNITS[name]
    if number is None or number[3] not in units:
        named = f" (units: {', '.join(filter(None, units))})" if any(units) else ""
        raise _error(source, f"{value!r} after {name}{sign} is not a number{named}")
    return float(number[1] + (number[2] or "")) * units[number[3]]


def _compared(name: str, compare: Callable[[float, float], bool], limit: float) -> Test:
    return _known(name, lambda v: v.holds(compare, limit) if isinstance(v, Rank) else compare(v, limit))


def _known(name: str, holds: Callable[[Any], bool | None]) -> Test:
    """A test that gives None for an unknown value."""

    def test(facts: Facts) -> bool | None:
        value = getattr(facts, name)
        return None if value is None else holds(value)

    return test


def _among(name: str, value: Collection[object]) -> Test:
    return lambda facts: getattr(facts, name) in value


def _both(tests: list[Test]) -> Test:
    def test(facts: Facts) -> bool | None:
        known: bool | None = True
        for one in tests:
            result = one(facts)
            if result is False:
                return False
            known = None if result is None else known
        return known

    return test


def _negated(one: Test) -> Test:
    def test(facts: Facts) -> bool | None:
        result = one(facts)
        return None if result is None else not result

    return test


def _error(source: str, what: str) -> UsageError:
    return UsageError(f"the filter {source[:80]!r} cannot be understood: {what}", f"possible: {FORMS}")
