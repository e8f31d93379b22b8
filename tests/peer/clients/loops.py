"""What the loops of this folder share: an agent that asks for the weather, and writes all that its SDK was given.

A loop is run by the Python of an environment with its SDK; arguments as in `questions.py`. It writes a line of JSON: of
each API the events and the last text, and of each answer the bytes that came, as a hash, in order.
"""

import hashlib
import json
import sys

import httpx2 as httpx

KEY = "sesame-0123456789abcdef"
"""No recording has it."""
SYSTEM = "You are a weather service. Ask the tool, then answer."
_hashes = []


class _Recorded(httpx.SyncByteStream):
    def __init__(self, stream):
        self._stream = stream
        self._hash = hashlib.sha256()

    def __iter__(self):
        for data in self._stream:
            self._hash.update(data)
            yield data

    def close(self):
        _hashes.append(self._hash.hexdigest())
        self._stream.close()


class _Transport(httpx.HTTPTransport):
    def handle_request(self, request):
        response = super().handle_request(request)
        response.stream = _Recorded(response.stream)
        return response


def recording_client():
    """An HTTP client that hashes the bytes of each answer's body; for an SDK."""
    return httpx.Client(transport=_Transport(), timeout=60)


def weather(arguments):
    """What the tool says."""
    return json.dumps({"city": arguments["city"], "weather": "sunny"})


def write(apis):
    """Write the report."""
    sys.stdout.write("\n" + json.dumps({"apis": apis, "sha256": _hashes}) + "\n")
