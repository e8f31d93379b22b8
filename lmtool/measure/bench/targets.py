"""Servers under load, LMTP through our client or OpenAI-compatible through plain HTTP, and their CPU time (Linux)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import aiohttp

from lmtool.core.errors import ConnectError, ServerError, TimeLimitError
from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest
from lmtool.measure.bench import workload
from lmtool.measure.bench.record import Record
from lmtool.net.access.outgoing import DENIED, as_headers, denied
from lmtool.net.http_client import open_client, reason_of
from lmtool.protocol.providers.answer_events import AnswerFailed, TextDelta, TokenUsage, ToolCallDelta, counted_tokens
from lmtool.protocol.providers.answer_reader import AnswerReader
from lmtool.protocol.providers.body_parts import form_of
from lmtool.trace.answers import ANSWER_ENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lmtool.core.interfaces import TokenModel
    from lmtool.core.types import TokenOutput
    from lmtool.measure.bench.workload import Job
    from lmtool.protocol.providers.answer_events import AnswerEvent

HttpApi: TypeAlias = Literal["chat", "completions"]
OnToken: TypeAlias = "Callable[[Record], None]"
"""Called with a request's record at each arrival of tokens."""
PROC = Path("/proc")
_LISTENING = "0A"
_JSON = {"content-type": "application/json"}


class Target(Protocol):
    """Answers requests."""

    async def send(self, job: Job, on_token: OnToken | None = None) -> Record:
        """Send one request and wait for its end. A failure is in the record."""


@dataclass(frozen=True, slots=True)
class Server:
    """The server under load."""

    target: Target
    url: str
    model: str
    vocab_size: int
    context_length: int | None
    process: int | None
    """Its id on this machine; None where it is unknown, and CPU time as well."""

    def cpu_seconds(self) -> float | None:
        """CPU time so far."""
        return None if self.process is None else process_cpu_seconds(self.process)

    def cpu_since(self, before: float | None) -> float | None:
        """CPU time since then."""
        now = self.cpu_seconds()
        return None if now is None or before is None else now - before


class ModelTarget:
    """Any `TokenModel`; with our client behind it, an LMTP server. Streams of one connection share it."""

    def __init__(self, model: TokenModel, name: str | None = None, *, plain: bool = False) -> None:
        """name: which of several served models. plain: send only what LMQL's server accepts; streams may end early."""
        self._model = model
        self._name = name
        self._plain = plain
        self._numbers = 0

    async def send(self, job: Job, on_token: OnToken | None = None) -> Record:
        """See `Target`."""
        self._numbers += 1
        record, done = Record(time.perf_counter()), asyncio.Event()

        def sink(outputs: Sequence[TokenOutput]) -> None:
            now = time.perf_counter()
            for output in outputs:
                if output.token is not None:
                    record.stamps.append(now)
                    record.tokens += 1
                record.error = output.error
                if output.last:
                    record.finish(now)
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
        number = self._numbers
        if job.scored:
            return ScoreRequest(number, job.prompt, job.scored, self._name)
        sampling = SamplingParams(max_tokens=job.output_len)
        if not self._plain:
            sampling = replace(sampling, ignore_eos=True, top_logprobs=0)
        if job.sample_seed is not None:
            sampling = replace(sampling, temperature=1.0, seed=job.sample_seed)
        return GenerateRequest(number, job.prompt, sampling, self._name, constraint=job.constraint)


class OpenAITarget:
    """Streamed answers over HTTP: a stamp for each token, or each piece of text where there are no tokens.

    Numbers of tokens are the server's `usage`.
    """

    def __init__(
        self,
        url: str,
        model: str = "",
        timeout: float = 600.0,
        *,
        api: HttpApi = "chat",
        authorization: str | None = None,
    ) -> None:
        """Open no connection yet; make it in a running event loop.

        url: ends with `/v1`. timeout: seconds without a byte. api: `chat` posts a message of as many common words as
        the prompt has ids to `/chat/completions`, `completions` the ids themselves to `/completions`. authorization:
        the header of this name.
        """
        self._api = api
        headers = {"accept-encoding": "identity", **as_headers(authorization)}
        self._client = open_client(headers=headers, connect_timeout=timeout, read_timeout=timeout)
        self._has_key = authorization is not None
        self._url = url.rstrip("/")
        self.model = model
        """The model of the requests."""

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def models(self) -> list[str]:
        """The names of the served models. Raises `ConnectError`, `AccessDeniedError`, `ServerError`."""
        try:
            async with self._client.get(f"{self._url}/models", allow_redirects=False) as answer:
                text = (await answer.read()).decode("utf-8", "replace")
            if answer.status in DENIED:
                raise denied(self._url, answer.status, text, key_sent=self._has_key)
            if answer.status != HTTPStatus.OK:
                raise ServerError(f"{self._url}/models answered {answer.status}")
            return [str(entry["id"]) for entry in json.loads(text)["data"]]
        except TimeoutError:
            raise TimeLimitError(f"no answer from {self._url}") from None
        except aiohttp.ClientError as error:
            raise ConnectError(f"no OpenAI-compatible server at {self._url} ({reason_of(error)})") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ServerError(f"{self._url}/models gave no list of models ({error!r})") from None

    async def send(self, job: Job, on_token: OnToken | None = None) -> Record:
        """See `Target`."""
        body: dict[str, object] = {
            "model": self.model,
            "max_tokens": job.output_len,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        if job.sample_seed is not None:
            body |= {"temperature": 1, "seed": job.sample_seed}
        schema = None if job.constraint is None else json.loads(job.constraint.text)
        if self._api == "chat":
            body["messages"] = [{"role": "user", "content": workload.words(job.prompt)}]
            if schema is not None:
                shape = {"name": "answer", "schema": schema, "strict": True}
                body["response_format"] = {"type": "json_schema", "json_schema": shape}
        else:
            body["prompt"] = list(job.prompt)
            if schema is not None:
                body["structured_outputs"] = {"json": schema}
        record = Record(time.perf_counter())
        if job.scored:
            record.error = "scoring is measured over LMTP only"
            return record
        data = json.dumps(body).encode()
        try:
            url = f"{self._url}/{'chat/completions' if self._api == 'chat' else 'completions'}"
            async with self._client.post(url, data=data, headers=_JSON, allow_redirects=False) as answer:
                if answer.status != HTTPStatus.OK:
                    text = (await answer.read()).decode("utf-8", "replace")
                    record.error = f"status {answer.status}: {text[:200]}"
                    return record
                reader = AnswerReader(self._api, form_of(answer.headers.get("content-type", "")))
                recorder = _Recorder(record, on_token)
                async for piece in answer.content.iter_any():
                    recorder.add(reader.feed(piece))
                recorder.add(reader.end())
                recorder.end()
        except (aiohttp.ClientError, TimeoutError) as error:
            record.error = f"{type(error).__name__}: {reason_of(error)}"
            record.finish(time.perf_counter())
        return record


class _Recorder:
    """Adds an answer's events to a record."""

    def __init__(self, record: Record, on_token: OnToken | None) -> None:
        self._record = record
        self._on_token = on_token
        self._finished = False
        self._counted: set[int] = set()

    def add(self, events: Iterable[AnswerEvent]) -> None:
        record = self._record
        for event in events:
            if isinstance(event, TextDelta | ToolCallDelta):
                tokens = counted_tokens(event, self._counted)
                record.stamps += [time.perf_counter()] * len(tokens)
                if tokens and self._on_token is not None:
                    self._on_token(record)
            elif isinstance(event, AnswerFailed):
                record.error = event.message[:200]
            elif isinstance(event, TokenUsage):
                record.tokens = event.completion_tokens or record.tokens
                record.prompt_tokens = event.prompt_tokens
            else:
                self._finished = True

    def end(self) -> None:
        """Call at the body's end; an answer without an ending is an error."""
        if not self._finished and self._record.error is None:
            self._record.error = ANSWER_ENDED
        self._record.finish(time.perf_counter())


def listener(port: int) -> int | None:
    """The id of the process that listens on a TCP port; None where it cannot be determined."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not sockets:
        return None
    for process in _numbers(PROC):
        if sockets & _open_files(process):
            return process
    return None


def _inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue  # another system, or no IPv6
        for fields in map(str.split, lines):
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _open_files(process: int) -> set[str]:
    files = set()
    with contextlib.suppress(OSError):  # another user's, or gone meanwhile
        for entry in (PROC / str(process) / "fd").iterdir():
            files.add(str(entry.readlink()))
    return files


def process_cpu_seconds(process: int) -> float | None:
    """CPU time, user and system, of a process and all its descendants; None when it is gone."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for number in _numbers(PROC):
        try:
            text = (PROC / str(number) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # gone meanwhile
        fields = text.rpartition(")")[2].split()
        parents[number] = int(fields[1])
        used[number] = _cpu_seconds(number, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    if process not in used:
        return None
    return sum(seconds for number, seconds in used.items() if _descends(number, process, parents))


def _cpu_seconds(process: int, counted: float) -> float:
    """By its own clock, in nanoseconds: what is counted is in ticks of 10 ms, more than a short load takes."""
    try:
        return time.clock_gettime((~process << 3) | 2)  # Linux's number for "all threads of that process"
    except OSError:
        return counted  # it has ended, and has no clock any more


def process_memory(process: int, *, files: bool = True) -> int | None:
    """Resident bytes of a process; None when it is gone. files: with the pages of libraries and other files."""
    try:
        _, resident, of_files, *_ = map(int, (PROC / str(process) / "statm").read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return (resident if files else resident - of_files) * os.sysconf("SC_PAGE_SIZE")


def _descends(number: int, ancestor: int, parents: dict[int, int]) -> bool:
    while number != ancestor and number in parents:
        number = parents[number]
    return number == ancestor


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(entry.name) for entry in os.scandir(folder) if entry.name.isdecimal()]
    except OSError:
        return []
