"""The unified API's routes on a real port, over fake providers."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import aiohttp
import pytest

from tests.fake_upstream import BAD, FakeUpstream
from tests.gateway.pools.running import CHAT, KEY, MESSAGE, Gateway, gateway, member, pool
from tests.net.telemetry.test_trace_context import GOOD

TURN = '{"role": "user", "content": "x"}'
HISTORY = [{"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "Yes."}]


def read_events(text: str) -> list[dict[str, Any]]:
    """The events of a stream, which ends with its mark."""
    *lines, mark = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert mark == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("path", ["/v1/language/default/chat", "/v1/language/default/chat/", "/v1/default/chat"])
async def test_a_chat_has_the_names_of_the_specification(path: str) -> None:
    """With and without the slash, and under the short path."""
    async with FakeUpstream() as upstream, gateway(pool(member("main", upstream))) as served:
        status, headers, reply = await served.post(path, MESSAGE | {"messageHistory": HISTORY})
        assert status == 200
        assert headers["x-lmtool-attempts"].startswith("main ok ")
        assert {name: reply[name] for name in ("provider", "pool", "model", "model_id", "cached")} == {
            "provider": "openai",
            "pool": "default",
            "model": "model-main",
            "model_id": "main",
            "cached": False,
        }
        assert reply["provider_response"] == {
            "response_id": {"id": "chatcmpl-1", "system_fingerprint": "fp_1"},
            "message": {"role": "assistant", "content": "Hello"},
            "token_count": {"prompt_tokens": 7, "response_tokens": 5, "total_tokens": 12},
            "finish_reason": "stop",
        }
        [received] = upstream.received
        assert [one["role"] for one in received.json["messages"]] == ["system", "assistant", "user"]
        assert received.key == f"{KEY}-main"


@pytest.mark.parametrize("kind", ["openai", "anthropic", "cohere", "ollama"])
@pytest.mark.parametrize("stream", [False, True])
async def test_every_provider_answers_alike(kind: str, stream: bool) -> None:
    """Role, text, ids and counts, whole and as events."""
    async with FakeUpstream() as upstream, gateway(pool(member("main", upstream, kind))) as served:
        _, _, reply = await served.post("/v1/default/chat", MESSAGE | {"stream": stream})
        parts = read_events(reply) if stream else [reply]
        assert "".join(one["provider_response"]["message"]["content"] for one in parts) == "Hello"
        assert {one["provider_response"]["message"]["role"] for one in parts} == {"assistant"}
        last = parts[-1]["provider_response"]
        assert last["token_count"] == {"prompt_tokens": 7, "response_tokens": 5, "total_tokens": 12}
        assert all(one["provider_response"]["response_id"] for one in parts)
        assert (parts[-1] if stream else last)["finish_reason"] == "stop"


async def test_messages_of_one_model() -> None:
    """Glide's `override_params` replaces the last message, by id or by name of the model; the history stays."""
    async with FakeUpstream() as one, FakeUpstream() as two:
        async with gateway(pool(member("a", one), member("b", two), strategy="round_robin")) as served:
            own = {"model-b": {"message": {"role": "user", "content": "In two words?"}}}
            body = MESSAGE | {"message_history": HISTORY, "override_params": own}
            for _ in range(2):
                assert (await served.post("/v1/default/chat", body))[0] == 200
        assert [received.json["messages"][-1]["content"] for received in (*one.received, *two.received)] == [
            "Hello there",
            "In two words?",
        ]
        assert two.received[0].json["messages"][0] == HISTORY[0]


async def test_the_specifications_literal_body_repeats_model() -> None:
    """Each has messages of its own; a member that has none is not asked."""

    def part(name: str, text: str) -> str:
        return f'"model": {{"name": "{name}", "messages": [{{"role": "user", "content": "{text}"}}]}}'

    body = "{" + part("model-a", "first") + ", " + part("b", "second") + "}"
    async with FakeUpstream(BAD["500"]) as one, FakeUpstream() as two, FakeUpstream() as three:
        async with gateway(pool(member("c", three), member("a", one), member("b", two))) as served:
            status, _, reply = await served.post("/v1/default/chat", data=body)
            assert (status, reply["model_id"]) == (200, "b")
        assert one.received[0].json["messages"] == [{"role": "user", "content": "first"}]
        assert two.received[0].json["messages"] == [{"role": "user", "content": "second"}]
        assert three.received == []


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ("no json", 400, "not JSON"),
        ("[]", 400, "not a JSON object"),
        ("{}", 400, "message is missing"),
        ('{"message": "hi"}', 400, "message is 'hi'"),
        ('{"message": {"role": "user"}}', 400, "message.content is missing"),
        ('{"message": {"role": "user", "content": 7}}', 400, "message.content is 7"),
        ('{"message": {"role": "god", "content": "x"}}', 400, "message.role is 'god'"),
        ('{"message": {"role": "user", "content": "x"}, "mesage": 1}', 400, "mesage is not known here; did you mean"),
        ('{"message": {"role": "user", "content": "x"}, "topP": 1}', 400, "topP is not a request's to set"),
        ('{"message": {"role": "user", "content": "x"}, "temperature": 9}', 400, "temperature is 9"),
        ('{"message": {"role": "user", "content": "x"}, "stream": 1}', 400, "stream is 1"),
        ('{"messageHistory": [{"role": "user", "content": "x"}]}', 400, "message is missing"),
        (
            '{"message": {"role": "user", "content": "x"}, "override_params": {"nix": {"message": NIX}}}',
            400,
            "names 'nix'",
        ),
        ('{"model": {"name": "main"}}', 400, "has no messages"),
        ("x" * ((4 << 20) + 1), 413, "more than"),
    ],
)
async def test_bad_input_is_refused_before_any_call(body: str, status: int, expected: str) -> None:
    """By name, with what may stand there."""
    async with FakeUpstream() as upstream:
        async with gateway(pool(member("main", upstream), overridable="[temperature]")) as served:
            answered, _, reply = await served.post(
                "/v1/default/chat", data=io.BytesIO(body.replace("NIX", TURN).encode())
            )
            assert (answered, sorted(reply)) == (status, ["attempts", "message", "name"])
            assert expected in reply["message"]
        assert upstream.received == []


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"messages": [{"role": "god", "content": "x"}]}, "messages[0].role is god; expected one of system"),
        ({"temperature": -3}, "temperature is -3"),
        ({"temperature": 7.5}, "temperature is 7.5; expected a number from 0 to 2"),
        ({"messages": None, "prompt": [1]}, "a pool takes messages, not token ids"),
        ({"min_tokens": 4}, "it cannot have min_tokens"),
        ({"model": "nix"}, "there is no pool 'nix'; pools here: default"),
    ],
)
async def test_bad_input_over_lmtp_is_refused_before_any_call(own: dict[str, Any], expected: str) -> None:
    """LMTP leaves roles and ranges to models; providers would refuse them, or not."""
    usual = {"stream_id": 1, "model": "default", "messages": [{"role": "user", "content": "x"}], "text": True}
    request = {name: value for name, value in (usual | own).items() if value is not None}
    async with FakeUpstream() as upstream, gateway(pool(member("main", upstream))) as served:
        async with served.session.ws_connect(f"{served.url}/") as socket:
            await socket.send_str(f"GENERATE {json.dumps(request)}")
            assert expected in json.loads((await socket.receive_str(timeout=10)).partition(" ")[2])[0]["error"]
        assert upstream.received == []


async def test_reasons_are_told_over_every_wire() -> None:
    """Where an API has no place for attempts, its error's sentence names each member's outcome, in our words."""
    broken = {"role": "user", "content": "\ud800"}
    async with (
        FakeUpstream(BAD["400"]) as one,
        FakeUpstream(BAD["500"]) as two,
        gateway(pool(member("a", one), member("b", two))) as served,
    ):
        _, _, reply = await served.post("/v1/chat/completions", CHAT)
        assert "has answered (a status 400, b status 500); try again" in reply["error"]["message"]
        two.usual = BAD["404"]
        _, _, reply = await served.post("/v1/messages", CHAT | {"max_tokens": 5})
        assert "refuses the request (a status 400, b status 404); change" in reply["error"]["message"]
        calls = len(one.received) + len(two.received)
        status, headers, reply = await served.post("/v1/default/chat", {"message": broken})
        assert (status, "half of a surrogate pair" in reply["message"]) == (400, True)
        assert headers["x-lmtool-attempts"].startswith("a the request has half of a surrogate pair? which UTF-8")
        assert len(one.received) + len(two.received) == calls


async def test_unknown_pools() -> None:
    """404 with the names that there are."""
    async with FakeUpstream() as upstream, gateway(pool(member("main", upstream))) as served:
        status, _, reply = await served.post("/v1/language/other/chat")
        assert (status, reply["name"]) == (404, "pool_not_found")
        assert "pools here: default" in reply["message"]


async def test_parameters_that_the_pool_lets_requests_set() -> None:
    """In either spelling, before the member's own; others keep the member's."""
    own = ", default_params: {temperature: 0.1, seed: 3}"
    async with FakeUpstream() as upstream:
        async with gateway(pool(member("main", upstream, own=own), overridable="[temperature, max_tokens]")) as served:
            await served.post("/v1/default/chat", MESSAGE | {"temperature": 0.9, "maxTokens": 4})
        body = upstream.received[0].json
        assert (body["temperature"], body["seed"], body["max_tokens"]) == (0.9, 3, 4)


async def test_a_gateway_is_ready_while_one_of_its_members_is() -> None:
    """`/health/ready` is 503 once all members rest; `/health/live` goes on."""
    async with FakeUpstream(BAD["429 in seconds"]) as one, FakeUpstream() as two:
        async with gateway(pool(member("a", one), member("b", two))) as served:
            await served.post("/v1/default/chat")
            assert await _probed(served) == (200, 200)
        async with gateway(pool(member("a", one))) as served:
            await served.post("/v1/default/chat")
            assert await _probed(served) == (200, 503)


async def _probed(served: Gateway) -> tuple[int, int]:
    statuses = []
    for name in ("live", "ready"):
        async with served.session.get(f"{served.url}/health/{name}") as response:
            statuses.append(response.status)
    return statuses[0], statuses[1]


async def test_the_state_of_the_pools() -> None:
    """Members with their health and what they did; no keys."""
    async with FakeUpstream(BAD["429 in seconds"]) as one, FakeUpstream() as two:
        prices = "{prompt: 1000000, response: 2000000}"
        async with gateway(pool(member("a", one), member("b", two, prices=prices))) as served:
            _, _, reply = await served.post("/v1/default/chat")
            assert reply["cost"] == 17.0
            state = await served.get("/v1/language/")
            first, second = state["pools"][0]["models"]
            assert (first["state"], first["reason"], first["failed"]) == ("resting", "rate limit", 1)
            assert 29 < first["resting_seconds"] <= 30
            assert (second["state"], second["ok"], second["cost"]) == ("ready", 1, 17.0)
            assert await served.get("/v1/health") == {"healthy": True, "ready_models": {"default": 1}}
            async with served.session.get(f"{served.url}/metrics") as response:
                text = await response.text()
            assert 'lmtool_pool_calls_total{pool="default",model="a",outcome="rate_limit"} 1' in text
            assert 'lmtool_pool_cost_total{pool="default",model="b"} 17.0' in text
            assert KEY not in json.dumps(state) + text


async def test_the_trace_of_a_request_is_passed_on() -> None:
    """Each member that is called gets `traceparent` and `tracestate` as they came, over every route; else none."""
    async with FakeUpstream(BAD["500"]) as one, FakeUpstream() as two:
        async with gateway(pool(member("a", one), member("b", two))) as served:
            for path, body in (("/v1/default/chat", MESSAGE), ("/v1/chat/completions", CHAT)):
                async with served.session.post(
                    served.url + path, json=body, headers={"traceparent": GOOD, "tracestate": "v=1"}
                ) as response:
                    assert response.status == 200
            await served.post("/v1/default/chat")
        traces = [[call.headers.get(name) for name in ("traceparent", "tracestate")] for call in two.received]
        assert traces == [[GOOD, "v=1"], [GOOD, "v=1"], [None, None]]
        assert one.received[0].headers["traceparent"] == GOOD


OWN_PATHS = [
    "/v1/language/default/chat",
    "/v1/language/default/chat/",
    "/v1/default/chat",
    "/v1/default/chat/",
    "/v1/language/",
    "/v1/language/default/nothing",
    "/v1/embeddings/default/embed/",
    "/v1/speech/transcribers/default/",
    "/v1/speech/synthesizers/default",
    "/v1/multi/default/multimodal",
]


async def test_the_key_of_the_door_is_asked_for() -> None:
    """Under each of its paths in the unified API's form, under those of others in theirs."""
    async with FakeUpstream() as upstream, gateway(pool(member("main", upstream)), key="door") as served:
        for path in OWN_PATHS:
            status, _, reply = await served.post(path)
            assert (status, reply["name"], reply["attempts"]) == (401, "invalid_api_key", []), path
            _, _, reply = await served.post(path, json={}, headers={"origin": "https://evil.example"})
            assert reply["name"] == "foreign_origin"
        for path in ("/v1/chat/completions", "/v1/embeddings", "/v1/messages", "/v1/audio/transcriptions"):
            status, _, reply = await served.post(path)
            assert (status, "error" in reply) == (401, True), path
        options = {"json": MESSAGE, "headers": {"authorization": "Bearer door"}}
        assert (await served.post("/v1/default/chat", **options))[0] == 200
        assert upstream.received[0].key == f"{KEY}-main"


@pytest.mark.parametrize("path", OWN_PATHS)
async def test_what_is_not_there(path: str) -> None:
    """Another method, and a path that nobody has: errors in the unified API's form, with the methods there are."""
    async with FakeUpstream() as upstream, gateway(pool(member("main", upstream))) as served:
        async with served.session.put(served.url + path, json=MESSAGE) as response:
            status, allowed, reply = response.status, response.headers.get("allow"), await response.json()
        expected = (404, "route_not_found") if path.endswith("nothing") else (405, "method_not_allowed")
        assert (status, reply["name"], reply["attempts"]) == (*expected, [])
        assert allowed == {405: "GET" if path == "/v1/language/" else "POST"}.get(status)


class TestSocket:
    """Streams over one WebSocket."""

    async def run(self, served: Gateway, messages: list[Any]) -> list[dict[str, Any]]:
        """What is answered to these messages, until each has an ending."""
        answered, ends = [], 0
        async with served.session.ws_connect(f"{served.url}/v1/language/default/chatStream") as socket:
            for message in messages:
                await socket.send_str(message if isinstance(message, str) else json.dumps(message))
            while ends < len(messages):
                answered.append(part := await socket.receive_json(timeout=10))
                ends += "error" in part or part["chunk"]["finish_reason"] is not None
        return answered

    async def test_many_streams_on_one_socket(self) -> None:
        """Each with its id and metadata; one that fails harms no other."""
        async with FakeUpstream() as upstream, gateway(pool(member("main", upstream))) as served:
            messages = [{"id": str(n), "metadata": {"n": n}, **MESSAGE} for n in range(3)]
            answered = await self.run(served, [*messages, {**MESSAGE}, "no json"])
        for n in range(3):
            own = [part for part in answered if part["id"] == str(n)]
            assert {part["metadata"]["n"] for part in own} == {n}
            texts = [part["chunk"]["provider_response"]["message"]["content"] for part in own]
            assert "".join(texts) == "Hello"
        assert [part["error"]["finish_reason"] for part in answered if "error" in part] == ["error", "error"]

    async def test_bad_messages_are_answered_under_their_own_id(self) -> None:
        """Whatever is wrong with them, and as text or as bytes; the socket stays open for the next one."""
        bad = {"id": "1", "metadata": 7, "message": {"role": "god", "content": "x"}}
        async with (
            FakeUpstream() as upstream,
            gateway(pool(member("main", upstream))) as served,
            served.session.ws_connect(f"{served.url}/v1/language/default/chatStream") as socket,
        ):
            await socket.send_json(bad)
            answer = await socket.receive_json(timeout=10)
            assert (answer["id"], answer["metadata"]) == ("1", 7)
            assert "message.role is 'god'" in answer["error"]["message"]
            for data in (b"\x00\xff", b"[]", b'{"id": 5}'):
                await socket.send_bytes(data)
                assert (await socket.receive_json(timeout=10))["id"] is None
            await socket.send_bytes(json.dumps({"id": "2", **MESSAGE}).encode())
            assert (await socket.receive_json(timeout=10))["id"] == "2"

    async def test_a_client_that_leaves_ends_the_call(self) -> None:
        """The provider notices."""
        from tests.fake_upstream import Behaviour

        endless = Behaviour(fault="hang", after=2)
        async with FakeUpstream(endless) as upstream, gateway(pool(member("main", upstream))) as served:
            async with served.session.ws_connect(f"{served.url}/v1/language/default/chatStream") as socket:
                await socket.send_json({"id": "1", **MESSAGE})
                await socket.receive_json(timeout=10)
            async with asyncio.timeout(10):
                await upstream.left.wait()
            assert served.pool.members[0].running == 0
            assert served.service.streams == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_call(stream: bool) -> None:
    """Of a whole answer too; it costs the member nothing."""
    from tests.fake_upstream import HANG

    async with FakeUpstream(HANG) as upstream, gateway(pool(member("main", upstream))) as served:
        with pytest.raises(TimeoutError):
            await served.session.post(
                f"{served.url}/v1/default/chat",
                json=MESSAGE | {"stream": stream},
                timeout=aiohttp.ClientTimeout(total=0.3),
            )
        async with asyncio.timeout(10):
            await upstream.left.wait()
        assert dict(served.pool.members[0].totals.outcomes) in ({"cancelled": 1}, {})
