"""Who sends a request: a key and an address, and what both of them use over all protocols."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lmtool.core.errors import AccessDeniedError
from lmtool.core.metrics import MetricFamily
from lmtool.net.access.allowance import Allowance
from lmtool.net.access.credentials import candidate_keys
from lmtool.net.access.names import address_group

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from lmtool.core.types import TokenOutput
    from lmtool.net.access.credentials import Headers
    from lmtool.net.access.keys import Key, KeyRing

MAX_ADDRESSES = 4096
"""Addresses whose use is remembered; beyond that those are forgotten that have used nothing for a minute."""


class Callers:
    """The keys of a server, and what each key and each address uses. Belongs to one event loop."""

    def __init__(self, ring: KeyRing, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds, never going back."""
        self.ring = ring
        self.clock = clock
        self._by_key: dict[str, Allowance] = {}
        self._by_address: dict[str, Allowance] = {}
        self._secret = secrets.token_bytes(16)
        self.connected: set[Caller] = set()
        """Callers whose connection or HTTP request has not ended."""

    def replace(self, ring: KeyRing) -> None:
        """Change to other keys and limits. What is used counts on; what a key that is gone has begun is ended."""
        self.ring = ring
        for key in ring.keys:
            if key.name in self._by_key:
                self._by_key[key.name].limits = key.limits
        for allowance in self._by_address.values():
            allowance.limits = ring.address
        for caller in [caller for caller in self.connected if ring.current(caller.known_key) is None]:
            caller.withdraw()
        names = {key.name for key in ring.keys}
        self._by_key = {name: one for name, one in self._by_key.items() if name in names or not one.idle}

    def caller(self, key: Key, address: str | None) -> Caller:
        """Somebody with this key at this address. address: None where there is none, as on a Unix socket."""
        own = self._by_key.get(key.name)
        if own is None:
            own = self._by_key[key.name] = Allowance(f"the key {key.name}", key.limits)
        allowances = [own] if address is None else [own, self._of_address(address_group(address))]
        return Caller(self, key, tuple(allowances))

    def showing(self, headers: Headers, address: str | None) -> Caller | None:
        """The caller with one of the keys in these headers; None for anybody else. address: as of `caller`."""
        key = self.ring.find(candidate_keys(headers))
        return None if key is None else self.caller(key, address)

    def _of_address(self, group: str) -> Allowance:
        if group not in self._by_address:
            if len(self._by_address) >= MAX_ADDRESSES:
                now = self.clock()
                self._by_address = {name: one for name, one in self._by_address.items() if not one.is_fresh(now)}
            self._by_address[group] = Allowance(f"the address {group}", self.ring.address)
        return self._by_address[group]

    def salted(self, name: str, salt: str) -> str:
        """A text for this key and this salt alone, which nobody else can know."""
        data = f"{name}\0{salt}".encode(errors="surrogatepass")
        return hashlib.blake2b(data, key=self._secret, digest_size=16).hexdigest()

    def metrics(self) -> Iterable[MetricFamily]:
        """What each key uses now, and how often it was refused."""
        keys = [(f'{{key="{name}"}}', one) for name, one in sorted(self._by_key.items())]
        for name, sentence, field in (
            ("key_connections", "Connections and HTTP requests by key.", "connections"),
            ("key_streams", "Streams by key.", "streams"),
            ("key_streams_waiting", "Streams that have had no token yet, by key.", "waiting"),
            ("key_refused_total", "Requests above a limit by key.", "refused"),
        ):
            samples = [(label, getattr(one, field)) for label, one in keys]
            yield MetricFamily(name, "counter" if name.endswith("_total") else "gauge", sentence, samples)


def withdrawn() -> AccessDeniedError:
    """The error of everything that was begun with a key which is no longer valid."""
    return AccessDeniedError("the key of this connection is no longer valid", "connect with another one")


class Caller:
    """Somebody with a key, at the other end of one connection or one HTTP request."""

    def __init__(self, callers: Callers, key: Key, allowances: tuple[Allowance, ...]) -> None:
        self._callers = callers
        self.known_key = key
        """The key as it was when the connection or request began."""
        self._withdrawn: dict[object, Callable[[], None]] = {}
        self._allowances = allowances
        self._counts_streams = True
        """True if each stream is a request of its own; an HTTP request has been counted before its streams."""

    @property
    def key(self) -> Key:
        """The key as it is now. Raises `AccessDeniedError` for one that is no longer valid."""
        key = self._callers.ring.current(self.known_key)
        if key is None:
            raise withdrawn()
        return key

    @property
    def is_admin(self) -> bool:
        """True if the key is valid and marked `admin`."""
        key = self._callers.ring.current(self.known_key)
        return key is not None and key.admin

    @property
    def name(self) -> str:
        """Of the key."""
        return self.known_key.name

    def salted(self, salt: str) -> str:
        """What separates what is cached for the key, under a salt of its own choice, from what is cached for others."""
        return self._callers.salted(self.known_key.name, salt)

    @contextlib.contextmanager
    def connected(self, *, as_request: bool = False) -> Iterator[None]:
        """Count a connection while the block runs. as_request: it is one HTTP request, which is counted too.

        Raises `RateLimitError` where it is too many.
        """
        now = self._callers.clock()
        for one in self._allowances:
            one.check_connection()
            if as_request:
                one.check_request(now)
                one.check_stream()
        self._counts_streams = not as_request
        for one in self._allowances:
            one.connections += 1
            if as_request:
                one.requests.spend(1, one.limits.requests_per_minute, now)
        self._callers.connected.add(self)
        try:
            yield
        finally:
            self._callers.connected.discard(self)
            for one in self._allowances:
                one.connections -= 1

    def on_withdrawal(self, end: Callable[[], None]) -> Callable[[], object]:
        """Call `end` where the key becomes invalid before the returned function is called."""
        token = object()
        self._withdrawn[token] = end
        return partial(self._withdrawn.pop, token, None)

    def withdraw(self) -> None:
        """End what was begun with the key, which is no longer valid."""
        for end in list(self._withdrawn.values()):
            end()

    def begin_stream(self, prompt_tokens: int = 0, *, prefill_only: bool = False) -> StreamUse:
        """Count a stream from now until its last output. Raises `RateLimitError` where it is too many.

        prompt_tokens: of its prompt, as far as they are known. prefill_only: it waits for all others, and only its
        tokens count: a server begins some by itself.
        """
        now, counts_request = self._callers.clock(), self._counts_streams and not prefill_only
        for one in self._allowances:
            if not prefill_only:
                one.check_stream()
            if self._counts_streams:
                one.check_request(now)
        for one in self._allowances:
            one.streams += not prefill_only
            one.waiting += not prefill_only
            one.tokens.spend(prompt_tokens, one.limits.tokens_per_minute, now)
            if counts_request:
                one.requests.spend(1, one.limits.requests_per_minute, now)
        counted = not prefill_only
        return StreamUse(self._allowances, self._callers.clock, prompt_tokens, waiting=counted, running=counted)


@dataclass(slots=True, eq=False)
class StreamUse:
    """One stream as its key and address account for it. Pass it each output, or `end` it."""

    allowances: tuple[Allowance, ...]
    clock: Callable[[], float]
    prompt_tokens: int
    """Those that are counted."""
    completion_tokens: int = 0
    waiting: bool = True
    """True if it counts as one that has had no token yet."""
    running: bool = True
    """True if it counts as a stream."""

    def note(self, output: TokenOutput) -> None:
        """Count what an output tells."""
        if output.token is not None:
            self.count(0, 1)
        if output.usage is not None:
            more = output.usage.completion_tokens - self.completion_tokens
            self.count(max(0, output.usage.prompt_tokens - self.prompt_tokens), max(0, more))
        if output.token is not None or output.text:
            self.begin()
        if output.last:
            self.end()

    def count(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Count tokens beside those that are counted already."""
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        now = self.clock()
        for one in self.allowances:
            one.tokens.spend(prompt_tokens + completion_tokens, one.limits.tokens_per_minute, now)

    def end(self) -> None:
        """The stream has ended; harmless when it had before."""
        if self.running:
            self.running = False
            self.begin()
            for one in self.allowances:
                one.streams -= 1

    def begin(self) -> None:
        """The stream waits no longer; harmless when it had begun before."""
        if self.waiting:
            self.waiting = False
            for one in self.allowances:
                one.waiting -= 1


current_caller: ContextVar[Caller | None] = ContextVar("current_caller", default=None)
"""Who sends the request that is being answered; set by the door of each protocol. None: there are no keys of a file."""


def caller_name() -> str:
    """Whose key the current request has; empty where there are no keys of a file."""
    caller = current_caller.get()
    return "" if caller is None else caller.name


def caller_turns() -> Hashable:
    """What takes turns with others for the current request, see `interfaces.client_of`: its key, or None."""
    caller = current_caller.get()
    return None if caller is None else ("key", caller.name)


def salted(salt: str) -> str:
    """A client's salt of a cache as it is used: with that of its key, where there are keys of a file."""
    caller = current_caller.get()
    return salt if caller is None else caller.salted(salt)


def may_use(name: str) -> bool:
    """True if the key of the current request may use a model or pool of this name."""
    caller = current_caller.get()
    return caller is None or caller.key.allows_name(name)


def is_admin() -> bool:
    """True if the current request may manage the server: its key has `admin`, or no file of keys is in use."""
    caller = current_caller.get()
    return caller is None or caller.is_admin


@contextlib.contextmanager
def counted_stream() -> Iterator[StreamUse | None]:
    """Count a stream of the current request while the block runs; None where there are no keys of a file.

    For what is no stream of a `TokenModel`. Raises `RateLimitError` where it is too many.
    """
    caller = current_caller.get()
    if caller is None:
        yield None
        return
    use = caller.begin_stream()
    try:
        yield use
    finally:
        use.end()
