"""What a balancer calls its clients."""

from __future__ import annotations

from lmtool.protocol.lmtp.client_names import ClientNames


class Client:
    """A client that is known by what it is."""


class Slotted:
    """One that cannot be referred to weakly."""

    __slots__ = ()


def test_a_client_has_one_name_and_nobody_else_has_it() -> None:
    """A key by its name, a connection by what it is; names tell neither, and are those of one balancer."""
    names, first, second, slotted = ClientNames(), Client(), Client(), Slotted()
    clients = [("key", "alice"), ("key", "bob"), first, second, slotted]
    given = [names.name(client) for client in clients]
    assert len(set(given)) == len(clients)
    assert given == [names.name(client) for client in clients]
    assert "alice" not in "".join(given)
    assert names.name(("key", "alice")) != ClientNames().name(("key", "alice"))


def test_nothing_is_kept_of_clients_that_are_gone() -> None:
    """A balancer that lives for long remembers those that are there."""
    names = ClientNames()
    for _ in range(100):
        names.name(Client())
    assert len(names._numbers) == 0
