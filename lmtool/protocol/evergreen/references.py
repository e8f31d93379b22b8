"""Outside data that leaves may refer to: files under given folders, and given hosts; nothing else, and nothing unasked.

A file is opened below its folder without following a link, and is a regular one. A host is resolved once, and the
connection goes to that address, which is a public one; redirects are not followed, and no credentials are sent. What
cannot be read is refused in one sentence, whatever the reason: it does not tell whether a file exists.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Network, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import SplitResult, unquote, unquote_to_bytes, urlsplit

from lmtool.core.errors import UsageError
from lmtool.protocol.evergreen.status import invalid, over_limit, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp.abc import AbstractResolver

MAX_BYTES = 64 * 1024 * 1024
"""Of one reference."""
SECONDS = 30.0
"""For one reference, from asking for its address to its last byte."""
MAX_URI_CHARACTERS = 4096
_PORTS = {"http": 80, "https": 443}

_GLOBAL_UNICAST = IPv6Network("2000::/3")
"""What IANA assigns for the internet: not `64:ff9b::/96` (NAT64), `::a.b.c.d`, `::ffff:0:a.b.c.d` or `fec0::/10`."""
_REFUSED = tuple(map(IPv6Network, ("2001::/32", "2002::/16", "3fff::/20")))
"""Teredo and 6to4: addresses of IPv4 within, which nothing needs any more; documentation (RFC 9637)."""

FindAddress: TypeAlias = Callable[[str, int], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class AllowedReferences:
    """What `--allow-ref` names, and how it is read; see `node_io.References`."""

    folders: Mapping[Path, Path] = field(default_factory=dict)
    """Each as it was named and as it is, to where it is."""
    origins: frozenset[tuple[str, str, int]] = frozenset()
    """Scheme, host and port of each."""
    data: bool = False
    """True if `data:` URIs may be used, which are inline data in another form."""
    find_address: FindAddress | None = None
    """Resolves a host; None: `public_address`."""

    def check(self, uri: str) -> None:
        """Raise `Abort` for a URI that is not accepted; asks nobody and reads nothing."""
        parts = _split(uri)
        if parts.scheme == "data" and self.data:
            return
        if parts.scheme == "file" and self._paths(parts):
            return
        if _origin(parts) in self.origins and "@" not in parts.netloc:
            return
        raise invalid(f"references to {quoted(_place(parts))} are not accepted here", "send the data inline")

    async def read(self, uri: str, mimetype: str, max_bytes: int) -> bytes:  # noqa: ARG002  # any type may be anywhere
        """The data at an accepted URI. Raises `Abort`, also where it is more than `max_bytes`."""
        self.check(uri)
        limit = min(max_bytes, MAX_BYTES)
        parts = _split(uri)
        try:
            async with asyncio.timeout(SECONDS):
                if parts.scheme == "data":
                    data = _data(uri)
                elif parts.scheme == "file":
                    data = await asyncio.to_thread(_read_file, self._paths(parts), limit)
                else:
                    data = await _download(uri, limit, self.find_address or public_address)
        except (OSError, ValueError, TimeoutError):
            raise invalid(f"the reference {quoted(uri)} cannot be read") from None
        if len(data) > limit:
            raise over_limit("max_value_bytes", limit, f"the data at {quoted(uri)} is too long")
        return data

    def _paths(self, parts: SplitResult) -> list[tuple[Path, Path]]:
        """The folders that a file may be in, each with its path below; none where it is outside of all of them."""
        path = unquote(parts.path)
        if "\0" in path or ".." in path.split("/"):
            return []
        if parts.netloc not in ("", "localhost"):  # no host but the beginning of a path, as the source writes them
            host = Path(unquote(parts.netloc))
            outside = host.is_absolute() or ".." in host.parts
            return [] if outside else [(root, host / path.lstrip("/")) for root in dict.fromkeys(self.folders.values())]
        named = Path(path)
        return [(root, named.relative_to(name)) for name, root in self.folders.items() if named.is_relative_to(name)]


def allowed_references(values: Sequence[str]) -> AllowedReferences | None:
    """What these values of `--allow-ref` allow; None for no value. Raises `UsageError`."""
    if not values:
        return None
    folders: dict[Path, Path] = {}
    origins: set[tuple[str, str, int]] = set()
    for value in values:
        scheme, _, rest = value.partition(":")
        if scheme == "file":
            folder = _folder(value, rest)
            folders |= {folder: folder.resolve(), folder.resolve(): folder.resolve()}
        elif scheme in _PORTS:
            origins.add(_allowed_origin(value))
        elif value != "data:":
            raise UsageError(f"--allow-ref {value!r:.80}: expected file:FOLDER, https://HOST, http://HOST or data:")
    return AllowedReferences(folders, frozenset(origins), "data:" in values)


def _folder(value: str, rest: str) -> Path:
    folder = Path(rest.removeprefix("//")).expanduser().absolute()
    if not rest or not folder.is_dir():
        raise UsageError(f"--allow-ref {value!r:.80}: there is no such folder")
    return folder


def _allowed_origin(value: str) -> tuple[str, str, int]:
    parts = urlsplit(value)
    origin = _origin(parts)
    if origin is None or "@" in parts.netloc or parts.path.strip("/") or parts.query:
        raise UsageError(f"--allow-ref {value!r:.80}: expected a host and nothing behind it, such as https://HOST")
    return origin


def _split(uri: str) -> SplitResult:
    if len(uri) <= MAX_URI_CHARACTERS or uri.startswith("data:"):
        try:
            return urlsplit(uri)
        except ValueError:
            pass
    raise invalid(f"{quoted(uri)} is no URI")


def _origin(parts: SplitResult) -> tuple[str, str, int] | None:
    try:
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname and parts.scheme in _PORTS else None


def _place(parts: SplitResult) -> str:
    """What a refusal names: never a file."""
    return f"{parts.scheme}://{parts.hostname}" if parts.scheme in _PORTS else f"{parts.scheme or 'no scheme'}:"


def _data(uri: str) -> bytes:
    head, comma, body = uri.removeprefix("data:").partition(",")
    if not comma:
        raise ValueError("a data: URI has a comma")
    plain = unquote_to_bytes(body)
    try:
        return base64.b64decode(plain, validate=True) if head.endswith(";base64") else plain
    except binascii.Error as error:
        raise ValueError("no base64") from error


def _read_file(places: Sequence[tuple[Path, Path]], limit: int) -> bytes:
    """The first of these files that is there. Raises `OSError` or `ValueError`."""
    problem: OSError | ValueError = FileNotFoundError()
    for folder, below in places:
        try:
            return _read_below(folder, below, limit)
        except (OSError, ValueError) as error:
            problem = error
    raise problem


def _read_below(folder: Path, below: Path, limit: int) -> bytes:
    """A file in a folder, and one byte beyond the limit where it is longer.

    Links within the folder are resolved first; then each step is opened without following one, so that nothing that
    is changed meanwhile leads outside.
    """
    steps = (folder / below).resolve().relative_to(folder).parts  # ValueError where a link leads outside
    if not steps:
        raise IsADirectoryError
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for step in steps[:-1]:
            inner = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = inner
        file = os.open(steps[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
    finally:
        os.close(handle)
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise PermissionError
        return opened.read(limit + 1)


async def public_address(host: str, port: int) -> str:
    """The address of a host. Raises `OSError` for one that is not public: of this machine, or of its network."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses or not all(map(_is_public, addresses)):
        raise PermissionError
    return addresses[0]


def _is_public(text: str) -> bool:
    """True if an address is global unicast, also where an IPv6 address holds one of IPv4 that a gateway would reach."""
    address = ip_address(text)
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast
    if address.ipv4_mapped is not None:
        return _is_public(str(address.ipv4_mapped))
    return address in _GLOBAL_UNICAST and address.is_global and not any(address in network for network in _REFUSED)


async def _download(uri: str, limit: int, find_address: FindAddress) -> bytes:
    """What a host gives, at most one byte beyond the limit. Raises `OSError`."""
    import aiohttp
    from yarl import URL

    url = URL(uri, encoded=True).with_fragment(None)
    address = await find_address(url.host or "", url.port or 0)
    connector = aiohttp.TCPConnector(resolver=_resolver(address))
    received = bytearray()
    try:
        async with (
            aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            ) as client,
            client.get(url, allow_redirects=False, headers={"Accept-Encoding": "identity"}) as answer,
        ):
            if answer.status != HTTPStatus.OK:
                raise OSError(f"status {answer.status}")
            async for piece in answer.content.iter_any():
                received += piece
                if len(received) > limit:
                    break
    except aiohttp.ClientError as error:
        raise OSError(str(error)) from error
    return bytes(received[: limit + 1])


def _resolver(address: str) -> AbstractResolver:
    """Gives this address for every name: a host is resolved once."""
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Fixed(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            del family
            kind = socket.AF_INET6 if ":" in address else socket.AF_INET
            return [ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=0)]

        async def close(self) -> None:
            pass

    return Fixed()
