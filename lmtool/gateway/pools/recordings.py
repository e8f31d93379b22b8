"""The recording of a request to transcribe: its body, or the file of a form as OpenAI's API has it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from lmtool.core.sampling_parameters import DEADLINE
from lmtool.protocol.http.decoding import refuse, wrong
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.http import read_body

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from starlette.requests import Request

FORM_DATA = "multipart/form-data"
MAX_AUDIO_BYTES = 32 << 20
MAX_FIELDS = 20
_RECORDINGS = {
    "audio/flac": "flac",
    "audio/mp4": "m4a",
    "audio/mpeg": "mp3",
    "audio/ogg": "ogg",
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/webm": "webm",
}
"""Content types of recordings, and the endings of their files' names, by which providers know them."""
_ENDINGS = frozenset({*_RECORDINGS.values(), "mp4", "mpeg", "mpga", "oga"})
_NO_RECORDING = "unsupported_media_type"
MAX_FORM_BYTES = 64 << 10
"""Of a form beside its recording."""
_FIXED = {"model": "", "response_format": "json"}
"""Fields that OpenAI's API has, and the one value that they may have here; empty: the pool's id."""
_HINTS = ("language", "prompt")
"""What may be said about a recording, in the query or the form."""
_SAID = (*_HINTS, "deadline")


@dataclass(frozen=True, slots=True)
class Recording:
    """What is to be transcribed."""

    audio: bytes
    ending: str
    """Of its file's name."""
    hints: dict[str, str]
    """About the recording, by the names in `_HINTS`."""
    deadline: float | None = None
    """Seconds from the request's arrival; None: any."""


async def read_recording(request: Request, pool: str) -> Recording:
    """The recording of a request, as a body of its own or in a form as OpenAI's API has it. Raises `ApiError`."""
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    for name in request.query_params:
        if name not in _SAID:
            refuse(name, f"{name[:100]} is not known in the query; expected one of {', '.join(_SAID)}")
    hints = dict(request.query_params)
    if kind != FORM_DATA:
        deadline = _deadline(hints)
        return Recording(await _audio_body(request, kind), _RECORDINGS[kind], hints, deadline)
    form = await _form(request)
    try:
        files = [(name, value) for name, value in form.multi_items() if isinstance(value, UploadFile)]
        if [name for name, _ in files] != ["file"]:
            refuse("file", "expected one file in the form, under the name file")
        audio = await files[0][1].read()
        ending = _ending(files[0][1])
    finally:
        await form.close()
    if len(audio) > MAX_AUDIO_BYTES:
        raise ApiError(413, f"the recording has more than {MAX_AUDIO_BYTES} bytes")
    for name, value in form.multi_items():
        if isinstance(value, str):
            hints |= _hint(name, value, pool, hints)
    deadline = _deadline(hints)
    return Recording(audio, ending, hints, deadline)


def _deadline(hints: dict[str, str]) -> float | None:
    """Take the deadline out of what is said about a recording. Raises `ApiError`."""
    text = hints.pop("deadline", None)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if seconds not in DEADLINE:
        raise wrong("deadline", text, f"{DEADLINE}, in seconds")
    return seconds


async def _form(request: Request) -> FormData:
    """The form in a request's body, its file in memory; close it. Raises `ApiError`."""
    body = await read_body(request, MAX_AUDIO_BYTES + MAX_FORM_BYTES)

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(
        request.headers, chunks(), max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FORM_BYTES
    )
    parser.spool_max_size = len(body)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise ApiError(400, f"the form cannot be read: {error.message}") from None
    _, parameters = parse_options_header(request.headers["content-type"])
    if not body[-100:].rstrip(b"\r\n").endswith(b"--%b--" % parameters[b"boundary"]):  # the parser takes what there is
        await form.close()
        raise ApiError(400, "the form cannot be read: it breaks off before its last boundary")
    return form


async def _audio_body(request: Request, kind: str) -> bytes:
    if kind not in _RECORDINGS:
        expected = f"a recording: {', '.join(_RECORDINGS)}, or {FORM_DATA} with a file"
        raise ApiError(415, f"the body is {kind[:100] or 'of no type'}; expected {expected}", code=_NO_RECORDING)
    return await read_body(request, MAX_AUDIO_BYTES)


def _hint(name: str, text: str, pool: str, known: Mapping[str, str]) -> dict[str, str]:
    """What a field that is no file says about the recording. Raises `ApiError`."""
    if name in _FIXED:
        expected = _FIXED[name] or pool
        if text != expected:
            raise wrong(name, text, expected)
        return {}
    if name not in _SAID:
        refuse(name[:100], f"{name[:100]} is not known in the form; expected file, {', '.join((*_SAID, *_FIXED))}")
    if name in known:
        refuse(name, f"{name} is there twice; send it once")
    return {name: text}


def _ending(file: UploadFile) -> str:
    """The ending of a file's name that tells providers its format, by its own name or its type. Raises `ApiError`."""
    own = (file.filename or "").rpartition(".")[2].lower()
    if own in _ENDINGS:
        return own
    kind = (file.content_type or "").partition(";")[0].strip().lower()
    if kind in _RECORDINGS:
        return _RECORDINGS[kind]
    sentence = f"the file is {file.filename!r:.100}; expected a name that ends in {', '.join(sorted(_ENDINGS))}"
    raise ApiError(415, sentence, param="file", code=_NO_RECORDING)
