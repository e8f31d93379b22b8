"""`--api-keys`: what a key may do and how much, on every wire of a server at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.inference.engine.plan import Plan
from lmtool.net.access.forwarding import parse_proxies
from lmtool.net.access.keys import KeyRing
from lmtool.protocol.http.server import OpenAIServer
from lmtool.protocol.lmtp.client import LmtpClient
from tests.protocol.lmtp.harness import until
from tests.serving.keyed_wires import MODEL, OTHER, POOL, WIRES, KeyedServer, http, keyed_server, lmtp

KEY = "canary-key"


def key(name: str, more: str = "") -> str:
    """The table of a key."""
    return f'[[keys]]\nname = "{name}"\nkey = "{KEY}-{name}"\n{more}\n'


async def statuses(server: KeyedServer, secret: str, model: str = MODEL) -> dict[str, int]:
    """What every wire tells."""
    found = {}
    for name, wire in WIRES.items():
        told = await wire(server, secret, model)
        assert KEY not in told.text, name
        found[name] = told.status
    return found


async def listed(server: KeyedServer, secret: str) -> list[set[str]]:
    """The names that each list of models shows."""
    async with LmtpClient(server.url, api_key=secret) as client:
        over_lmtp = {entry.name for entry in await client.models()}
    over_http = json.loads((await http(server, secret, "/v1/models")).text)
    pools = json.loads((await http(server, secret, "/v1/language")).text)
    health = json.loads((await http(server, secret, "/v1/health")).text)
    return [
        over_lmtp,
        {card["id"] for card in over_http["data"]},
        {pool["id"] for pool in pools["pools"]},
        set(health["ready_models"]),
    ]


async def test_keys_and_models_on_every_wire(tmp_path: Path) -> None:
    """A key opens every wire; a wrong one, or none, none of them; models that it may not use are not there for it."""
    keys = (
        key("all", "admin = true") + key("one", f'models = ["{MODEL}", "{POOL}"]') + key("none", 'models = ["nothing"]')
    )
    async with keyed_server(keys, tmp_path) as server:
        assert set((await statuses(server, f"{KEY}-all")).values()) == {200}
        for wrong in ("", "wrong"):
            assert set((await statuses(server, wrong)).values()) == {401}
            assert (await http(server, wrong, "/metrics")).status == 401
        assert set((await statuses(server, f"{KEY}-one")).values()) == {200}
        assert set((await statuses(server, f"{KEY}-one", OTHER)).values()) == {404}
        assert set((await statuses(server, f"{KEY}-none")).values()) == {404}
        assert await listed(server, f"{KEY}-all") == [{MODEL, OTHER, POOL}, {MODEL, OTHER, POOL}, {POOL}, {POOL}]
        assert await listed(server, f"{KEY}-one") == [{MODEL, POOL}, {MODEL, POOL}, {POOL}, {POOL}]
        assert await listed(server, f"{KEY}-none") == [set()] * 4
        told = await lmtp(server.url, f"{KEY}-one", OTHER)
        assert told.text == f"model '{OTHER}' is not served here; served here: {POOL}, {MODEL}"
        assert (await http(server, f"{KEY}-one", "/metrics")).status == 403
        metrics = (await http(server, f"{KEY}-all", "/metrics")).text
        assert 'lmtool_key_streams{key="one"} 0' in metrics
        assert KEY not in metrics


async def test_requests_of_all_wires_together(tmp_path: Path) -> None:
    """A minute's requests may come over any wire; the next one is refused on each, with the time to wait."""
    keys = key("seldom", f"requests_per_minute = {len(WIRES)}") + key("other")
    async with keyed_server(keys, tmp_path) as server:
        now = 1000.0
        server.callers.clock = lambda: now
        assert set((await statuses(server, f"{KEY}-seldom")).values()) == {200}
        for name, wire in WIRES.items():
            told = await wire(server, f"{KEY}-seldom", MODEL)
            assert told.status == 429, name
            assert 0 < told.retry_after <= 6 or "Evergreen" in name, name
        assert (await lmtp(server.url, f"{KEY}-other", MODEL)).status == 200
        now += 6.1
        assert (await http(server, f"{KEY}-seldom", "/v1/models")).status == 200
        assert (await http(server, f"{KEY}-seldom", "/v1/models")).status == 429
        assert (await http(server, "", "/health")).status == 200
        probes = [await http(server, "", path) for path in ("/health/live", "/health/ready")]  # nor do they need a key
        assert [(probe.status, probe.text) for probe in probes] == [(200, "ok\n")] * 2


async def test_streams_of_all_wires_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream over one wire takes the place of those over others, until it has ended; so do those of an address."""
    keys = "[address]\nstreams = 2\n" + key("narrow", "streams = 1") + key("wide")
    async with keyed_server(keys, tmp_path) as server:
        with monkeypatch.context() as nothing_begins:
            nothing_begins.setattr(server.scheduler, "plan", Plan)
            await _while_streams_wait(server)
        await until(lambda: all(one.idle for one in server.callers._by_key.values()))
        assert set((await statuses(server, f"{KEY}-narrow")).values()) == {200}


async def _while_streams_wait(server: KeyedServer) -> None:
    async with (
        LmtpClient(server.url, api_key=f"{KEY}-narrow") as client,
        LmtpClient(server.url, api_key=f"{KEY}-wide") as other,
    ):
        client.submit(GenerateRequest("a", (1, 40), model=MODEL), lambda _: None)
        await until(lambda: server.callers._by_key["narrow"].streams)
        assert set((await statuses(server, f"{KEY}-narrow")).values()) == {429}
        other.submit(GenerateRequest("a", (1, 40), model=MODEL), lambda _: None)
        await until(lambda: server.callers._by_key["wide"].streams)
        for name, wire in WIRES.items():
            if "Unix" not in name:  # which has no address
                assert (await wire(server, f"{KEY}-wide", MODEL)).status == 429, name


async def test_tokens_of_all_wires_together(tmp_path: Path) -> None:
    """Whoever has used up the tokens of a minute waits, on each wire."""
    async with keyed_server(key("short", "tokens_per_minute = 5"), tmp_path) as server:
        now = 1000.0
        server.callers.clock = lambda: now
        assert (await lmtp(server.url, f"{KEY}-short", MODEL)).status == 200  # three of the prompt, two of the answer
        assert set((await statuses(server, f"{KEY}-short")).values()) == {429}
        now += 13
        assert (await http(server, f"{KEY}-short", "/v1/models")).status == 200


async def test_connections_and_keys_that_are_withdrawn(tmp_path: Path) -> None:
    """One more connection is refused at its handshake; a key that is gone begins nothing new, also where it is open."""
    async with (
        keyed_server(key("few", "connections = 1"), tmp_path) as server,
        LmtpClient(server.url, api_key=f"{KEY}-few") as client,
    ):
        assert set((await statuses(server, f"{KEY}-few")).values()) == {429}
        assert (await client.info(MODEL)).key_limits == {"connections": 1}
        server.callers.replace(KeyRing())
        outputs = [output async for output in stream(client, GenerateRequest("a", (1, 40), model=MODEL))]
        assert outputs[-1].error_code in {"access_denied", "connection"}  # the connection is closed meanwhile
        assert set((await statuses(server, f"{KEY}-few")).values()) == {401}


async def test_what_is_cached_of_a_prompt(tmp_path: Path) -> None:
    """A key finds what it has sent before, over any wire; another key, or another salt of its own, finds nothing."""
    prompt = tuple(range(40, 340))
    async with keyed_server(key("a") + key("b"), tmp_path) as server:

        async def cached(secret: str, salt: str = "") -> int:
            async with LmtpClient(server.url, api_key=secret) as client:
                await client.models()
                asked = GenerateRequest("a", prompt, SamplingParams(max_tokens=1), MODEL, cache_salt=salt)
                last = [output async for output in stream(client, asked)][-1]
            assert last.usage is not None, last.error
            return last.usage.cached_tokens

        assert await cached(f"{KEY}-a") == 0
        known = await cached(f"{KEY}-a")
        assert known > 0
        assert await cached(f"{KEY}-b") == 0
        assert await cached(f"{KEY}-a", "own") == 0
        assert await cached(f"{KEY}-a", "own") == known
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
        for secret, expected in (("a", known), ("b", known), ("c", None)):
            told = await http(server, f"{KEY}-{secret}", "/v1/completions", body)
            found = json.loads(told.text).get("usage", {}).get("prompt_tokens_details", {}).get("cached_tokens")
            assert found == expected, told.text


async def test_scored_prompts_and_stored_responses(tmp_path: Path) -> None:
    """What is kept of one key's requests is not there for another: neither scores of prompts nor responses."""
    async with keyed_server(key("a") + key("b"), tmp_path) as server:
        stored = json.loads((await http(server, f"{KEY}-a", "/v1/responses", {"model": MODEL, "input": "Hi"})).text)
        assert (await http(server, f"{KEY}-a", f"/v1/responses/{stored['id']}")).status == 200
        assert (await http(server, f"{KEY}-b", f"/v1/responses/{stored['id']}")).status == 404
        again = {"model": MODEL, "input": "Hi", "previous_response_id": stored["id"]}
        assert (await http(server, f"{KEY}-b", "/v1/responses", again)).status == 404
        body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 0, "echo": True, "logprobs": 1}
        scored = next(face for face in server.service.faces if isinstance(face, OpenAIServer))._models._scored
        for name, count in (("a", 1), ("a", 1), ("b", 2)):
            assert (await http(server, f"{KEY}-{name}", "/v1/completions", body)).status == 200
            assert len(scored._kept) == count


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded"])
async def test_what_a_proxy_passes_on(tmp_path: Path, header: str) -> None:
    """Without trust the peer counts; a trusted proxy's clients are told apart."""
    limits = "[address]\nrequests_per_minute = 1\n"
    for proxies, expected in (((), [200, 429, 429]), (("127.0.0.1",), [200, 200, 429])):
        folder = tmp_path / str(len(proxies))
        folder.mkdir()
        async with keyed_server(limits + key("all"), folder, proxies=parse_proxies(proxies)) as server:
            found = []
            for client in ("192.0.2.1", "192.0.2.2", "192.0.2.1"):
                value = client if header.startswith("x") else f"for={client}"
                told = await http(server, f"{KEY}-all", "/v1/models", headers={header: value})
                found.append(told.status)
        assert found == expected
