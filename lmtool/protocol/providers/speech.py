"""Speech to text and text to speech, as OpenAI's API and its like have them."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from lmtool.core.errors import RequestError
from lmtool.protocol.providers.json_values import load, object_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.protocol.providers.http_request import HttpRequest, Settings
    from lmtool.protocol.providers.provider import Provider

_FIELD = re.compile(r"[A-Za-z0-9_]+(?:\[\])?")
_UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\]')


def has_speech(provider: Provider) -> bool:
    """Whether the provider's API has speech; whether a model makes it shows when it is asked."""
    return provider.api == "chat"


def _check(provider: Provider) -> None:
    if not has_speech(provider):
        raise RequestError(f"{provider.name} has neither transcription nor speech synthesis")


def transcription_request(
    provider: Provider,
    audio: bytes,
    file_name: str,
    model: str,
    settings: Settings,
    fields: Mapping[str, str] | None = None,
) -> HttpRequest:
    """The request for the text of a recording.

    fields: further ones of the form, such as `language` or `prompt`. Raises `RequestError` for names of fields that a
    form cannot have, and where the API has no transcription.
    """
    _check(provider)
    extra = {name: str(value) for name, value in settings.extra_body.items()}
    parts = {"model": model, "response_format": "json", **(fields or {}), **extra}
    if wrong := next((name for name in parts if not _FIELD.fullmatch(name)), None):
        raise RequestError(f"{wrong!r} is no name of a field", "letters, digits and _")
    boundary = hashlib.sha256(audio).hexdigest()  # no recording has its own hash in it
    head = f'Content-Disposition: form-data; name="file"; filename="{_UNSAFE.sub("_", file_name)}"\r\n'
    body = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode("utf-8", "replace")
        for name, value in parts.items()
    ]
    body += [f"--{boundary}\r\n{head}Content-Type: application/octet-stream\r\n\r\n".encode("utf-8", "replace"), audio]
    body.append(f"\r\n--{boundary}--\r\n".encode())
    content_type = f"multipart/form-data; boundary={boundary}"
    return provider.post("/audio/transcriptions", model, b"".join(body), content_type, settings)


def read_transcription(body: bytes) -> str | None:
    """The text in an answer; None where it is malformed."""
    text = object_of(load(body)).get("text")
    return text if isinstance(text, str) else None


def speech_request(
    provider: Provider, text: str, voice: str, audio_format: str, model: str, settings: Settings
) -> HttpRequest:
    """The request for a text to be spoken; the body of its answer is the audio. Raises `RequestError`."""
    _check(provider)
    body = {"model": model, "input": text, "voice": voice, "response_format": audio_format}
    return provider.json_request("/audio/speech", model, body, settings)
