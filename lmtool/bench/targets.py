"""Servers under load: an LMTP server through our client, an OpenAI-compatible one through plain HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

import httpx

from lmtool.access.outgoing import DENIED, as_headers, denied
from lmtool.bench.processes import cpu_seconds
from lmtool.bench.record import Record
from lmtool.errors import ConnectError, ServerError, TimeLimitError
from lmtool.providers.answer_events import AnswerFailed, TextDelta, TokenUsage, ToolCallDelta, counted_tokens
from lmtool.providers.answer_reader import AnswerReader
from lmtool.providers.body_parts import form_of
from lmtool.trace.answers import ANSWER_ENDED
from lmtool.types import GenerateRequest, SamplingParams, ScoreRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lmtool.bench.workload import Job
    from lmtool.interfaces import TokenModel
    from lmtool.providers.answer_events import AnswerEvent
    from lmtool.types import TokenOutput

OnToken: TypeAlias = "Callable[[Record], None]"
"""Is shown the record of a request at each arrival of tokens."""


class Target(Protocol):
    """Answers requests."""

    async def send(self, job: Job, on_token: OnToken | None = None) -> Record:
        """Send one request and wait for its end; on_token is called at each arrival. A failure is in the record."""


@dataclass(frozen=True, slots=True)
class Server:
    """Who is measured."""

    target: Target
    url: str
    model: str
    vocab_size: int
    context_length: int | None
    process: int | None
    """Its id on this machine; None where it is not known: then CPU time is not told."""

    def cpu_seconds(self) -> float | None:
        """What it has used so far."""
        return None if self.process is None else cpu_seconds(self.process)

    def cpu_since(self, before: float | None) -> float | None:
        """What it has used since then."""
        now = self.cpu_seconds()
        return None if now is None or before is None else now - before


class ModelTarget:
    """Any `TokenModel`; with our client behind it, an LMTP server. Streams of one connection share it."""

    def __init__(self, model: TokenModel, name: str | None = None, *, plain: bool = False) -> None:
        """name: which of several served models. plain: it takes what LMQL's server takes; streams may end early."""
        self._model = model
        self._name = name
        self._plain = plain
        self._count = 0

    async def send(self, job: Job, on_token: OnToken | None = None) -> Record:
        """See `Target`."""
        self._count += 1
        record, done = Record(time.perf_counter()), asyncio.Event()

        def sink(outputs: Sequence[TokenOutput]) -> None:
            now = time.perf_counter()
            for output in outputs:
                if output.token is not None:
                    record.stamps.append(now)
                    record.tokens += 1
                record.error = output.error
                if output.last:
                    done.set()
            if on_token is not None:
                on_token(record)

        handle = self._model.submit(self._request(job), sink)
        try:
            await done.wait()
        finally:
            handle.cancel()
        return record

    def _request(self, job: Job) -> GenerateRequest | ScoreRequest:
        number = self._count
        if job.scored:
            return ScoreRequest(number, job.prompt, job.scored, self._name)
        sampling = SamplingParams(max_tokens=job.output_len)
        if not self._plain:
            sampling = replace(sampling, ignore_eos=True, top_logprobs=0)
        if job.drawn is not None:
            sampling = replace(sampling, temperature=1.0, seed=job.drawn)
        return GenerateRequest(number, job.prompt, sampling, self._name, constraint=job.constraint)


class OpenAITarget:
    """`POST URL/completions` with `stream`: a stamp a token where they are named, else a piece of text.

    The server's `usage` says how many tokens these were.
    """

    def __init__(self, url: str, model: str = "", timeout: float = 600.0, *, authorization: str | None = None) -> None:
        """url: ends with `/v1`. timeout: seconds without a byte. authorization: the header of this name."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        headers = as_headers(authorization)
        self._client = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False, headers=headers)
        self._shown = authorization is not None
        self._url = url.rstrip("/")
        self.model = model
        """Which of the served ones is asked."""

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def models(self) -> list[str]:
        """The names that it serves. Raises `ConnectError`, `AccessDeniedError`, `ServerError`."""
        try:
            answer = await self._client.get(f"{self._url}/models")
            answer.raise_for_status()
            return [str(entry["id"]) for entry in answer.json()["data"]]
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status in DENIED:
                raise denied(self._url, status, error.response.text, shown=self._shown) from None
            raise ServerError(f"{self._url}/models answered {status}") from None
        except httpx.TimeoutException:
            raise TimeLimitError(f"no answer from {self._url}") from None
        except httpx.HTTPError as error:
            raise ConnectError(f"no OpenAI-compatible server at {self._url} ({error})") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ServerError(f"{self._url}/models gave no list of models ({error!r})") from None

    async def send(self, job: Job, on_token: OnToken | None = None) -> Record:
        """See `Target`."""
        body = {
            "model": self.model,
            "prompt": list(job.prompt),
            "max_tokens": job.output_len,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        if job.drawn is not None:
            body |= {"temperature": 1, "seed": job.drawn}
        if job.constraint is not None:
            body["structured_outputs"] = {"json": json.loads(job.constraint.text)}
        record = Record(time.perf_counter())
        if job.scored:
            record.error = "scoring is measured over LMTP only"
            return record
        try:
            async with self._client.stream("POST", f"{self._url}/completions", json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    text = (await answer.aread()).decode("utf-8", "replace")
                    record.error = f"status {answer.status_code}: {text[:200]}"
                    return record
                reader = AnswerReader("completions", form_of(answer.headers.get("content-type", "")))
                count = _Count(record, on_token)
                async for data in answer.aiter_bytes():
                    count.add(reader.feed(data))
                count.add(reader.end())
                count.end()
        except httpx.HTTPError as error:
            record.error = f"{type(error).__name__}: {error}"
        record.tokens = record.tokens or len(record.stamps)
        return record


class _Count:
    """Puts what an answer brings into a record."""

    def __init__(self, record: Record, on_token: OnToken | None) -> None:
        self._record = record
        self._on_token = on_token
        self._finished = False
        self._named: set[int] = set()

    def add(self, events: Iterable[AnswerEvent]) -> None:
        record = self._record
        for event in events:
            if isinstance(event, TextDelta | ToolCallDelta):
                tokens = counted_tokens(event, self._named)
                record.stamps += [time.perf_counter()] * len(tokens)
                if tokens and self._on_token is not None:
                    self._on_token(record)
            elif isinstance(event, AnswerFailed):
                record.error = event.message[:200]
            elif isinstance(event, TokenUsage):
                record.tokens = event.completion_tokens or record.tokens
            else:
                self._finished = True

    def end(self) -> None:
        """The body is complete."""
        if not self._finished and self._record.error is None:
            self._record.error = ANSWER_ENDED
