"""Hostile frames and requests for every wire, drawn by a seed: what is sent, and how; nothing is sent here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lmtool.protocol.lmtp.request_fields import KNOWN
from tests.lab.soak.connection import BINARY, CLOSE, PING, TEXT, frame
from tests.lab.soak.grammar import broken_json, hostile_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    from tests.lab.soak.connection import Address

Delivery: TypeAlias = Literal["message", "frames", "request", "bytes", "call"]
"""`message`: of a WebSocket, framed well. `frames`: bytes behind a WebSocket's handshake. `request`: a whole HTTP
request, which must be answered. `bytes`: anything on a new connection, which need not be. `call`: a message of gRPC."""

SOCKETS: Mapping[str, str] = {"LMTP": "/", "Evergreen": "/evergreen", "chatStream": "/v1/language/{pool}/chatStream"}
"""Paths of the wires that are WebSockets."""
ROUTES: Mapping[str, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "unified": "/v1/language/{pool}/chat",
}
"""Paths of the wires that are HTTP requests for an answer."""
SIDE_ROUTES = ("/v1/messages/count_tokens", "/v1/tokenize", "/v1/detokenize", "/v1/embeddings", "/tokenize")
GRPC = "gRPC"
FEW_TOKENS = 3


@dataclass(frozen=True, slots=True)
class Attack:
    """One hostile frame or request."""

    wire: str
    kind: str
    """What is wrong with it, for a report."""
    delivery: Delivery
    data: bytes
    path: str = ""
    """Of the WebSocket."""
    binary: bool = False
    """True if a message is sent as bytes."""


def generate(random: Random, wire: str, address: Address, model: str, pool: str) -> Attack:
    """The next attack on a wire. The same state of `random` gives the same one."""
    if wire == "LMTP":
        return _frames(random, wire, SOCKETS[wire]) if random.random() < 0.1 else _lmtp(random, model)
    if wire == GRPC:
        return Attack(wire, "a broken message", "call", _flipped_message(random, model))
    if wire in SOCKETS:
        path = SOCKETS[wire].format(pool=pool)
        if random.random() < 0.2:
            return _frames(random, wire, path)
        return _evergreen(random, path, model) if wire == "Evergreen" else _chat_stream(random, path)
    if random.random() < 0.3:
        return _raw_http(random, wire, address, ROUTES[wire].format(pool=pool), model)
    return _posted(random, wire, address, ROUTES[wire].format(pool=pool), model)


def _lmtp(random: Random, model: str) -> Attack:
    command = random.choice((*sorted(KNOWN), "GENERATE", "GENERATE", "SCORE"))
    tree = _lmtp_members(random, command, model)
    kind, text = broken_json(random, tree)
    target = random.choice((command,) * 8 + ("NONSENSE", command.lower(), "", " ", command * 500))
    gap = random.choice((b" ",) * 12 + (b"", b"  ", b"\t", b"\n", b"\xa0"))
    return Attack("LMTP", f"{command}: {kind}", "message", target.encode() + gap + text, "/", random.random() < 0.05)


def _lmtp_members(random: Random, command: str, model: str) -> dict[str, Any]:
    """A request that would be served, with one field more at a value that is drawn; never one that unloads a model."""
    tree: dict[str, Any] = {"stream_id": random.choice((1, 2, "a", [1], {"b": 1.0})), "model": model}
    more: dict[str, dict[str, Any]] = {
        "GENERATE": {"prompt": [5, 6, 7], "max_tokens": FEW_TOKENS, "temperature": 0.7, "top_logprobs": 2},
        "SCORE": {"prompt": [5, 6], "scored": [7, 8]},
        "BUFFER": {"name": "b", "append": [5, 6, 7], "ttl": 5},
        "MODELS": {"load": "no such model"},
    }
    tree |= more.get(command, {"data": None})
    names = sorted(KNOWN[command] - tree.keys() - {"unload"})
    if names and random.random() < 0.7:
        tree[random.choice(names)] = random.choice(_fitting(random))
    return tree


def _fitting(random: Random) -> Sequence[object]:
    """Values as the fields of requests have them."""
    return (
        hostile_value(random)[1],
        True,
        1,
        0.5,
        "a",
        [1, 2],
        {"regex": "[a-z]+"},
        {"json": {"type": "object", "properties": {"a": {"$ref": "#"}}}},
        [{"role": "user", "content": "x"}],
        [{"name": "nothing", "args": {}}],
        {"7": 100, "8": -100},
        ["stop", 5],
    )


def _frames(random: Random, wire: str, path: str) -> Attack:
    """What no WebSocket client may send (RFC 6455)."""
    body = b"GENERATE {}"
    cases: Mapping[str, bytes] = {
        "reserved bits": frame(TEXT, body, reserved=random.randrange(1, 8)),
        "an unknown opcode": frame(random.choice((3, 7, 11, 15)), body),
        "no mask": frame(TEXT, body, masked=False),
        "a length beyond the limit": frame(TEXT, body, length=random.choice((5 << 20, 2**40, 2**63 - 1))),
        "a negative length": frame(TEXT, body, length=2**64 - 1),
        "a long ping": frame(PING, b"x" * 200),
        "a ping in parts": frame(PING, b"x", fin=False),
        "an odd close": frame(CLOSE, random.choice((b"\x00", b"\x03\xed", b"\xff\xff", b"\x03\xe8\xff"))),
        "a continuation of nothing": frame(0, body),
        "a message in a message": frame(TEXT, b"GEN", fin=False) + frame(TEXT, body),
        "a message in many parts": b"".join(frame(TEXT if not at else 0, b"G", fin=False) for at in range(50)),
        "text that is not UTF-8": frame(TEXT, b"\xff\xfe" + body),
        "many pings": frame(PING, b"p") * 60,
        "an empty message": frame(TEXT, b"") + frame(BINARY, b""),
        "HTTP behind the handshake": b"GET / HTTP/1.1\r\n\r\n",
        "half a frame": frame(TEXT, body)[:7],
    }
    kind = random.choice(sorted(cases))
    return Attack(wire, kind, "frames", cases[kind], path)


def _posted(random: Random, wire: str, address: Address, path: str, model: str) -> Attack:
    """A whole request whose body is wrong, sometimes to another route."""
    path = random.choice((path,) * 6 + SIDE_ROUTES)
    kind, body = broken_json(random, request_body(wire, model, "Hello", FEW_TOKENS))
    return Attack(wire, f"{path}: {kind}", "request", address.request("POST", path, body, {"Connection": "close"}))


def request_body(wire: str, model: str, prompt: str, tokens: int) -> dict[str, Any]:
    """A plain request of an HTTP wire."""
    says = [{"role": "user", "content": prompt}]
    bodies: dict[str, dict[str, Any]] = {
        "completions": {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0},
        "chat": {"model": model, "messages": says, "max_tokens": tokens, "temperature": 0},
        "responses": {"model": model, "input": prompt, "max_output_tokens": tokens, "temperature": 0},
        "messages": {"model": model, "messages": says, "max_tokens": tokens, "temperature": 0},
        "unified": {"message": says[0]},  # a pool says itself how long answers are
    }
    return bodies[wire]


_METHODS = ("GET", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "OPTIONS", "post", "P\x00ST", "POST" * 300, "")
_TARGETS = (
    "//",
    "/../../etc/passwd",
    "/%00",
    "/%ff%fe",
    "*",
    "http://elsewhere/",
    "/" + "a" * 9000,
    "/v1/models/%2e%2e",
)
_VERSIONS = ("HTTP/1.0", "HTTP/0.9", "HTTP/9.9", "HTTP/1.1 x", "FTP/1.1", "")
_HEADERS = (
    "Content-Length: 5",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Expect: 100-continue",
    "Content-Encoding: gzip",
    "Content-Type: text/plain; charset=\xff",
    "Origin: https://elsewhere.example",
    "Host: elsewhere.example",
    "Host: a\r\nHost: b",
    "Upgrade: h2c",
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x",
    "Forwarded: for=unknown;by=nobody",
    "X: " + "y" * 70_000,
    "\r\n".join(f"X-{number}: 1" for number in range(300)),
    "No colon here",
    " folded: yes",
    "X\x00Y: 1",
    "Authorization: Bearer \xff\xfe",
    "Range: bytes=0-,0-,0-",
)
_CHUNKS = (
    b"ZZ\r\n",
    b"-1\r\n\r\n",
    b"FFFFFFFFFFFFFFFFFF\r\n",
    b"5\r\nab\r\n0\r\n\r\n",
    b"0\r\n" + b"T: x\r\n" * 200,
    b"2;" * 999,
)


def _raw_http(random: Random, wire: str, address: Address, path: str, model: str) -> Attack:
    """A request whose line, headers or framing are wrong."""
    body = json.dumps(request_body(wire, model, "Hello", FEW_TOKENS)).encode()
    whole = address.request("POST", path, body)
    line, _, rest = whole.partition(b"\r\n")
    kind = random.choice(("line", "header", "chunks", "half", "noise", "two"))
    if kind == "line":
        words = (
            random.choice(("POST", *_METHODS)),
            random.choice((path, *_TARGETS)),
            random.choice(("HTTP/1.1", *_VERSIONS)),
        )
        return Attack(wire, "a wrong request line", "bytes", " ".join(words).encode("latin-1") + b"\r\n" + rest)
    if kind == "header":
        header = random.choice(_HEADERS)
        return Attack(
            wire, f"header {header[:30]!r}", "bytes", line + b"\r\n" + header.encode("latin-1") + b"\r\n" + rest
        )
    if kind == "chunks":
        head = address.request("POST", path, headers={"Transfer-Encoding": "chunked"})
        return Attack(wire, "wrong chunks", "bytes", head + random.choice(_CHUNKS))
    if kind == "half":
        return Attack(wire, "half a request", "bytes", whole[: random.randrange(1, len(whole))])
    if kind == "noise":
        return Attack(wire, "noise", "bytes", random.randbytes(random.choice((1, 50, 5000))))
    return Attack(wire, "one request in another", "bytes", whole + b"GET / HTTP/1.1\r\n" + whole)


def _chat_stream(random: Random, path: str) -> Attack:
    tree = {"id": "1", "message": {"role": "user", "content": "Hello"}}
    kind, text = broken_json(random, tree)
    return Attack("chatStream", kind, "message", text, path, random.random() < 0.05)


def _evergreen(random: Random, path: str, model: str) -> Attack:
    """A message of a session, as proto-JSON or as bytes."""
    if random.random() < 0.3:
        data = _as_bytes(random)
        return Attack("Evergreen", "bytes that are no message", "message", data, path, binary=True)
    kind, text = broken_json(random, random.choice(_SESSIONS)(random, model))
    return Attack("Evergreen", kind, "message", text, path)


def session_message(node: str, prompt: str, model: str, tokens: int) -> dict[str, Any]:
    """A plain message that asks for an answer, as proto-JSON."""
    import base64

    leaf = {"metadata": {"mimetype": "text/plain"}, "data": base64.b64encode(prompt.encode()).decode()}
    options = {
        "@type": "type.googleapis.com/google.protobuf.Struct",
        "value": {"max_tokens": tokens, "ignore_eos": True},
    }
    action: dict[str, Any] = {
        "name": "GENERATE",
        "inputs": [{"name": "prompt", "id": node}],
        "outputs": [{"name": "response", "id": f"{node} answer"}],
        "configs": [options],
    }
    if model:
        action["targetSpec"] = {"id": model}
    return {"nodeFragments": [{"id": node, "chunkFragment": leaf, "seq": 0}], "actions": [action]}


def _plain_session(random: Random, model: str) -> dict[str, Any]:
    return session_message(f"n{random.randrange(9)}", "Hello", model, FEW_TOKENS)


def _tangled_session(random: Random, model: str) -> dict[str, Any]:
    """Nodes that lead back to themselves, double, or never come."""
    count = random.choice((1, 3, 60))
    shape, children = random.choice(("cycle", "chain", "tangle")), random.choice((1, 2, 50))
    targets = {"cycle": [(at + 1) % count for at in range(count)], "chain": list(range(1, count + 1))}
    to = targets.get(shape) or [random.randrange(count) for _ in range(count)]
    nodes = [{"id": f"n{at}", "childIds": [f"n{to[at]}"] * children} for at in range(count)]
    message = session_message("p", "Hello", model, FEW_TOKENS)
    message["nodeFragments"] += nodes
    message["actions"][0]["inputs"][0]["id"] = random.choice(("n0", "never"))
    return message


def _numbered_session(random: Random, model: str) -> dict[str, Any]:
    message = session_message("p", "Hello", model, FEW_TOKENS)
    message["nodeFragments"][0]["seq"] = random.choice((-1, 1, 2**31 - 1, -(2**31)))
    message["actions"][0]["name"] = random.choice(("GENERATE", "CANCEL", "NOTHING", ""))
    return message


_SESSIONS = (_plain_session, _tangled_session, _numbered_session)


def _flipped_message(random: Random, model: str) -> bytes:
    """A message in binary form with some bytes changed. Needs the packages of Evergreen."""
    from lmtool.protocol.evergreen.codec import decode, encode

    message = random.choice(_SESSIONS)(random, model)
    changed = bytearray(encode(decode(json.dumps(message))))
    for _ in range(random.choice((0, 1, 5))):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed) if random.random() < 0.8 else _as_bytes(random)


def _as_bytes(random: Random) -> bytes:
    """Fields of protobuf that are cut, nested or wrong."""
    return random.choice(
        (
            random.randbytes(random.choice((1, 20, 400))),
            b"\x0a\x00" * random.choice((1, 1000)),
            b"\x0a\xff\xff\xff\xff\x7f",
            b"\x0a\x05\x0a\x01n" + b"\x10" + b"\xff" * 11,
            b"\x12\x0a\x0a\x08GENERATE",
            b"\x0b" * 500,
        )
    )
