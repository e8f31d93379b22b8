"""Servers that are not honest, each in one thing, and the checks that must find it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from lmtool.core.types import GenerateRequest, TokenOutput
from lmtool.measure.audit.evidence import Kind
from tests.measure.audit.toy_model import Change, Request, ToyModel, ToyStream
from tests.measure.audit.toy_server import App, Json, Rewrite, application


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that a server does wrong."""

    finds: tuple[str, ...]
    """Checks of which one must find it."""
    change: Change | None = None
    """Of the model's outputs."""
    requests: Callable[[Request], Request] | None = None
    """Of what the model is asked."""
    rewrite: Rewrite | None = None
    """Of what is answered over HTTP."""
    claim: Kind | None = None
    route: str = "completions"

    def application(self, seed: int = 0) -> App:
        """The server."""
        return application(self.model(seed), self.rewrite)

    def model(self, seed: int = 0) -> ToyModel:
        """Its model."""
        return ToyModel(seed, change=self.change, rewrite=self.requests)


def sampled(**changed: object) -> Callable[[Request], Request]:
    """Requests to generate, with parameters changed."""

    def rewrite(request: Request) -> Request:
        if not isinstance(request, GenerateRequest):
            return request
        return replace(request, sampling=replace(request.sampling, **changed))  # type: ignore[arg-type]

    return rewrite


def _hot_greedy(request: Request) -> Request:
    greedy = isinstance(request, GenerateRequest) and request.sampling.temperature == 0
    return sampled(temperature=0.9)(request) if greedy else request


def _no_temperature(request: Request) -> Request:
    warm = isinstance(request, GenerateRequest) and request.sampling.temperature > 0
    return sampled(temperature=1.0)(request) if warm else request


def _hidden_top_k(request: Request) -> Request:
    plain = isinstance(request, GenerateRequest) and not request.sampling.top_k
    return sampled(top_k=4)(request) if plain else request


def _numbers(of: Callable[[float], float]) -> Change:
    """Outputs with each logprob changed."""

    def change(stream: ToyStream, output: TokenOutput) -> TokenOutput:
        if output.logprob is None:
            return output
        top = tuple((token, of(value)) for token, value in output.top_logprobs or ())
        return replace(output, logprob=of(output.logprob), top_logprobs=None if output.top_logprobs is None else top)

    return change


def _when(holds: Callable[[ToyStream], bool], change: Change) -> Change:
    return lambda stream, output: change(stream, output) if holds(stream) else output


def _is_generated(stream: ToyStream) -> bool:
    return isinstance(stream.request, GenerateRequest)


def _half_tempered(stream: ToyStream, output: TokenOutput) -> TokenOutput:
    """Logprobs divided by half of what the temperature says, and not normalised."""
    assert isinstance(stream.request, GenerateRequest)
    warmth = stream.request.sampling.temperature
    return _numbers(lambda one: one / (1 + (warmth - 1) / 2) if warmth > 0 else one)(stream, output)


def _narrow_is_other(stream: ToyStream, output: TokenOutput) -> TokenOutput:
    """With few alternatives numbers are others: normalised over them alone."""
    if output.top_logprobs is None or len(output.top_logprobs) > 4 or output.logprob is None:
        return output
    total = math.log(sum(math.exp(value) for _, value in output.top_logprobs))
    return _numbers(lambda one: one - total)(stream, output)


def _each_choice(of: Callable[[Json, Json, Json], None]) -> Rewrite:
    """Answers with each choice changed: called with it, the answer and the request."""

    def rewrite(answer: Json, request: Json) -> Json:
        for choice in answer.get("choices", ()):
            of(choice, answer, request)
        return answer

    return rewrite


def _shift(choice: Json, answer: Json, request: Json) -> None:
    """Each token has the logprob of the one before."""
    logprobs = choice["logprobs"] or {}
    values = logprobs.get("token_logprobs") or []
    if len(values) > 1:
        logprobs["token_logprobs"] = [values[-1], *values[:-1]]


def _shift_echo(choice: Json, answer: Json, request: Json) -> None:
    """Of an echoed prompt with its answer, all entries move by one."""
    logprobs = choice["logprobs"] or {}
    if request.get("echo") and request["max_tokens"] > 1:
        for name in ("token_logprobs", "top_logprobs"):
            logprobs[name] = [None, None, *logprobs[name][1:-1]]


def _duplicate(choice: Json, answer: Json, request: Json) -> None:
    for entry in (choice["logprobs"] or {}).get("content") or ():
        if len(entry["top_logprobs"]) > 2:
            entry["top_logprobs"][2] = copy.deepcopy(entry["top_logprobs"][1])


def _not_chosen(choice: Json, answer: Json, request: Json) -> None:
    """The chosen token is left out of the alternatives."""
    for entry in (choice["logprobs"] or {}).get("content") or ():
        entry["top_logprobs"] = [one for one in entry["top_logprobs"] if one["token"] != entry["token"]]


def _other_stream(choice: Json, answer: Json, request: Json) -> None:
    logprobs = choice["logprobs"] or {}
    if request.get("stream") and logprobs.get("token_logprobs"):
        logprobs["token_logprobs"] = [value - 0.3 for value in logprobs["token_logprobs"]]
        logprobs["top_logprobs"] = [{n: v - 0.3 for n, v in one.items()} for one in logprobs["top_logprobs"]]


def _lost_text(choice: Json, answer: Json, request: Json) -> None:
    choice["text"] = choice["text"][:-1] if not request.get("stream") else choice["text"]


def _stop_for_length(choice: Json, answer: Json, request: Json) -> None:
    if choice["finish_reason"] == "length":
        choice["finish_reason"] = "stop"


def _length_for_stop(choice: Json, answer: Json, request: Json) -> None:
    if choice["finish_reason"] == "stop":
        choice["finish_reason"] = "length"


def _copies(answer: Json, request: Json) -> Json:
    for choice in answer["choices"][1:]:
        choice |= {**copy.deepcopy(answer["choices"][0]), "index": choice["index"]}
    return answer


def _miscount(answer: Json, request: Json) -> Json:
    if answer.get("usage"):
        answer["usage"]["completion_tokens"] += 2
        answer["usage"]["total_tokens"] += 2
    return answer


def _miscount_prompt(answer: Json, request: Json) -> Json:
    if answer.get("usage") and request.get("stream"):
        answer["usage"]["prompt_tokens"] += 1
        answer["usage"]["total_tokens"] += 1
    return answer


FAULTS: dict[str, Fault] = {
    "processed where raw is claimed": Fault(
        ("raw_or_processed",), requests=sampled(logprobs_mode="processed"), claim="raw"
    ),
    "logprobs shifted by one": Fault(("chosen_token",), rewrite=_each_choice(_shift)),
    "base-2 logarithms": Fault(("calibration",), change=_numbers(lambda one: one / math.log(2))),
    "sums over 1": Fault(("sums",), change=_numbers(lambda one: min(0.0, one + 0.4))),
    "logprobs above 0": Fault(("numbers",), change=_numbers(lambda one: -one)),
    "an alternative twice": Fault(("alternatives",), rewrite=_each_choice(_duplicate), route="chat"),
    "the chosen one left out": Fault(("chosen_token",), rewrite=_each_choice(_not_chosen), route="chat"),
    "echo shifted": Fault(("echo",), rewrite=_each_choice(_shift_echo)),
    "a stream with other numbers": Fault(("stream",), rewrite=_each_choice(_other_stream)),
    "a crowd changes numbers": Fault(
        ("concurrency",), change=_when(lambda stream: stream.crowded, _numbers(lambda one: one - 0.15))
    ),
    "usage counts two more": Fault(("usage",), rewrite=_miscount),
    "usage counts another prompt when streamed": Fault(("usage",), rewrite=_miscount_prompt),
    "stop in place of length": Fault(("finish_reason",), rewrite=_each_choice(_stop_for_length)),
    "length in place of stop": Fault(("finish_reason",), rewrite=_each_choice(_length_for_stop)),
    "n copies are one": Fault(("n",), rewrite=_copies),
    "the seed is ignored": Fault(("seed",), requests=sampled(seed=None)),
    "greedy is not greedy": Fault(("greedy",), requests=_hot_greedy),
    "prompts are scored otherwise": Fault(
        ("prompt_logprobs",), change=_when(lambda stream: not _is_generated(stream), _numbers(lambda one: one - 0.5))
    ),
    "temperature is ignored": Fault(("calibration_sharpened",), requests=_no_temperature),
    "top_p is ignored": Fault(("top_p",), requests=sampled(top_p=1.0)),
    "penalties are ignored": Fault(("penalties",), requests=sampled(presence_penalty=0.0, frequency_penalty=0.0)),
    "a truncation that is not claimed": Fault(("calibration",), requests=_hidden_top_k),
    "logprobs follow temperature by half": Fault(("temperature", "sums"), change=_when(_is_generated, _half_tempered)),
    "fewer alternatives, other numbers": Fault(("fewer_alternatives",), change=_when(_is_generated, _narrow_is_other)),
    "a letter of the text is lost": Fault(("text",), rewrite=_each_choice(_lost_text)),
}
"""By what is wrong."""
