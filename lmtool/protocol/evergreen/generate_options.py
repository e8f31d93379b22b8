"""What GENERATE takes beside its prompt: OpenAI's names in a `google.protobuf.Struct`, or a `GenerateConfig`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, get_args

from lmtool.core.constraint import constraint_from, of_response_format
from lmtool.core.errors import RequestError
from lmtool.core.logits_processors import processors_from
from lmtool.core.reasoning import EFFORTS, template_variables
from lmtool.core.sampling_parameters import DEADLINE, NUMERIC_PARAMETERS, PROMPT_MAX_TOKENS, Range, wrong_value
from lmtool.core.types import LogprobsMode, SamplingParams
from lmtool.protocol.evergreen.status import Abort, abort_of, invalid, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.core.types import Constraint, NamedProcessor

_EFFORT_CHARACTERS = 64
MAX_STOPS = 64
"""Stop texts, and stop ids."""
_PRIORITY = Range(-(2**31), 2**31 - 1, integer=True)
_BUDGET = Range(-1, 2**31 - 1, integer=True)
_TOKEN_ID = Range(0, 2**31 - 1, integer=True)
_ALIASES = {"max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens"}
_CONSTRAINTS = ("constraint", "structured_outputs", "response_format")
_OTHERS = (
    *("priority", "logits_processors", "chat_template_kwargs", "deadline"),
    *("thinking_token_budget", "reasoning_effort"),
)
_UNSUPPORTED = {"n": "ask for another GENERATE for each further answer", "stream": "outputs are streamed always"}


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """How an answer is made."""

    sampling: SamplingParams = field(
        default_factory=lambda: SamplingParams(max_tokens=PROMPT_MAX_TOKENS, top_logprobs=0)
    )
    constraint: Constraint | None = None
    priority: int = 0
    logits_processors: tuple[NamedProcessor, ...] = ()
    chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    deadline: float | None = None
    """Seconds from the action's arrival; None: any."""
    thinking_token_budget: int | None = None
    """Most tokens of the thought; None: any number."""
    reasoning_effort: str | None = None
    """How much to think, in a word: for the chat template, or else one of `reasoning.EFFORTS`."""

    @property
    def template_variables(self) -> Mapping[str, object]:
        """Of the chat template, those of a `reasoning_effort` included."""
        return {**template_variables(self.reasoning_effort), **self.chat_template_kwargs}


def read_options(configs: Iterable[Mapping[str, object]]) -> GenerateOptions:
    """The options of config messages, each as a JSON object; of one name in several the last counts.

    A whole number may be written 16.0, as a Struct has no other. Raises `Abort`, INVALID_ARGUMENT, that names the
    field, for one that is unknown or has a value that it cannot have.
    """
    values: dict[str, object] = {}
    for config in configs:
        for name, value in config.items():
            if value is not None:
                values[_ALIASES.get(name, name)] = value
    _check_names(values)
    sampling = {name: _READERS[name](name, value) for name, value in values.items() if name in _READERS}
    options = GenerateOptions()
    try:
        return GenerateOptions(
            replace(options.sampling, **sampling),  # type: ignore[arg-type] # each reader gives its field's type
            _constraint(values),
            int(_number(_PRIORITY)("priority", values.get("priority", 0))),
            processors_from(_whole(values["logits_processors"])) if "logits_processors" in values else (),
            _object("chat_template_kwargs", values.get("chat_template_kwargs", {})),
            _number(DEADLINE)("deadline", values["deadline"]) if "deadline" in values else None,
            _budget(values),
            _effort(values.get("reasoning_effort")),
        )
    except RequestError as error:
        raise abort_of(error) from error


def _check_names(values: Mapping[str, object]) -> None:
    known = {*_READERS, *_CONSTRAINTS, *_ALIASES, *_OTHERS}
    for name in values:
        if name in _UNSUPPORTED:
            raise invalid(f"GENERATE has no option {name!r}", _UNSUPPORTED[name])
        if name not in known:
            raise invalid(f"GENERATE has no option {quoted(name)}", f"it has: {', '.join(sorted(known))}")


def _constraint(values: Mapping[str, object]) -> Constraint | None:
    given = [name for name in _CONSTRAINTS if name in values]
    if len(given) > 1:
        raise invalid(f"{' and '.join(given)} contradict each other; give one of them")
    if not given:
        return None
    [name] = given
    value = _whole(values[name])
    form = of_response_format(value) if name == "response_format" else value
    return None if form is None else constraint_from(form, where=name)


def _whole(value: object) -> object:
    """The same with 2 in place of 2.0: a Struct has no whole numbers, and a schema's `minItems` is one."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _whole(one) for name, one in value.items()}
    return [_whole(one) for one in value] if isinstance(value, list | tuple) else value


def _wrong(name: str, value: object, expected: object) -> Abort:
    return invalid(wrong_value(name, value if isinstance(value, bool | int | float) else quoted(str(value)), expected))


def _number(allowed: Range) -> Callable[[str, object], float]:
    def read(name: str, value: object) -> float:
        number = _whole(value) if allowed.integer else value
        if number not in allowed:
            raise _wrong(name, value, allowed)
        assert isinstance(number, int | float)
        return number if allowed.integer else float(number)

    return read


def _budget(values: Mapping[str, object]) -> int | None:
    """The budget of a thought; -1 is none."""
    if "thinking_token_budget" not in values:
        return None
    budget = int(_number(_BUDGET)("thinking_token_budget", values["thinking_token_budget"]))
    return None if budget < 0 else budget


def _effort(value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not 0 < len(value) <= _EFFORT_CHARACTERS):
        raise _wrong("reasoning_effort", value, f"one of {', '.join(EFFORTS)}, or a word of the model's template")
    return value


def _top_k(name: str, value: object) -> int:
    return max(0, int(_number(NUMERIC_PARAMETERS["top_k"].openai)(name, value)))


def _texts(name: str, value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    valid = isinstance(texts, list | tuple) and all(isinstance(text, str) and text for text in texts)
    if not valid or not isinstance(texts, list | tuple) or len(texts) > MAX_STOPS:
        raise _wrong(name, value, f"a text, or at most {MAX_STOPS} of them, none empty")
    return tuple(texts)


def _ids(name: str, value: object) -> tuple[int, ...]:
    ids = _whole(value)
    if not isinstance(ids, list) or len(ids) > MAX_STOPS or not all(one in _TOKEN_ID for one in ids):
        raise _wrong(name, value, f"a list of at most {MAX_STOPS} token ids")
    return tuple(ids)


def _bias(name: str, value: object) -> dict[int, float]:
    expected = 'an object of token ids and finite numbers, such as {"50256": -100}'
    members = _object(name, value, expected)
    bias = {}
    for token, nats in members.items():
        number = isinstance(nats, int | float) and not isinstance(nats, bool) and math.isfinite(nats)
        if not token.isdecimal() or int(token) not in _TOKEN_ID or not number:
            raise _wrong(name, {token: nats}, expected)
        bias[int(token)] = max(-100.0, min(100.0, float(nats)))  # type: ignore[arg-type] # a number, as just seen
    return bias


def _object(name: str, value: object, expected: str = "an object") -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise _wrong(name, value, expected)
    return value


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return value


def _mode(name: str, value: object) -> str:
    if value not in get_args(LogprobsMode):
        raise _wrong(name, value, f"one of {', '.join(get_args(LogprobsMode))}")
    return str(value)


_READERS: Mapping[str, Callable[[str, object], object]] = {
    **{name: _number(parameter.openai) for name, parameter in NUMERIC_PARAMETERS.items()},
    "top_k": _top_k,
    "logit_bias": _bias,
    "stop": _texts,
    "stop_token_ids": _ids,
    "ignore_eos": _switch,
    "logprobs_mode": _mode,
}
"""The fields of `SamplingParams`, each with its reader."""
