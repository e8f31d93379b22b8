"""LMTP, GENERATE."""

import asyncio
import json

import pytest

from lmtool.core.types import ModelInfo
from lmtool.inference.engine.config import EngineConfig
from lmtool.protocol.lmtp.messages import ModelInfoRequest
from lmtool.protocol.lmtp.server_session import ServerSession
from lmtool.serving.composition import Loader
from tests.protocol.lmtp.harness import serving, until, wire
from tests.spec.conftest import STORIES

BOS = 1


async def generate(client, stream_id=1, **fields):
    await client.send(f"GENERATE {json.dumps({'prompt': [BOS, 403, 407, 261, 378], 'stream_id': stream_id, **fields})}")
    return await client.stream(stream_id)


def tokens(entries):
    return [entry["token"] for entry in entries]


async def test_prompts_are_ids(client, scripted):
    """GEN-1: the prompt's ids are taken as they are; it may be empty."""
    await generate(client, prompt=[5, 0, 7])
    await generate(client, prompt=[])
    assert [request.prompt for request in scripted.requests] == [(5, 0, 7), ()]


@pytest.mark.parametrize("prompt", [[-1], ["a", -1], [1.5], [None], {"a": 1}, 5, True, [[1]], [2**40]])
async def test_bad_prompts(client, prompt):
    """GEN-1, ERR-1: anything but ids from 0, texts, or a list of them ends the stream with an error."""
    (entry,) = await generate(client, prompt=prompt)
    assert "prompt" in entry["error"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("temperature", "hot"),
        ("logit_bias", {"x": 1}),
        ("top_logprobs", -1),
        ("top_p", 0),
        ("top_k", -1),
        ("repetition_penalty", 0),
        ("min_p", 2),
        ("seed", "x"),
        ("stop", [""]),
        ("ignore_eos", 1),
        ("logprobs_mode", "best"),
    ],
)
async def test_values_out_of_range(client, field, value):
    """GEN-3, GEN-4, GEN-5, GEN-6, GEN-7, GEN-9, GEN-10, GEN-11, LOG-4, ERR-5: the error names field and expectation."""
    (entry,) = await generate(client, prompt=[1], **{field: value})
    assert entry["error"].startswith(field)
    assert "expected" in entry["error"]


async def test_logit_bias(real):
    """GEN-5, LOG-2: +100 for one id forces it with logprob 0; -100 forbids."""
    (forced,) = await generate(real, max_tokens=1, logit_bias={"77": 100})
    assert forced["token"] == 77
    assert abs(forced["logprob"]) < 1e-4
    (free,) = await generate(real, max_tokens=1)
    (forbidden,) = await generate(real, max_tokens=1, logit_bias={str(free["token"]): -100})
    assert forbidden["token"] != free["token"]
    (outside,) = await generate(real, max_tokens=1, logit_bias={"512": 1})
    assert "512" in outside["error"]


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"json": {"type": "object"}}, "json_schema"),
        ({"json_object": True}, "json_schema"),
        ({"regex": "a+"}, "regex"),
        ({"choice": ["a", "b"]}, "choice"),
        ({"grammar": 'start: "a"'}, "grammar"),
        ({"structural_tag": {"structures": [], "triggers": []}}, "structural_tag"),
    ],
)
async def test_constraints(client, scripted, given, kind):
    """GEN-13: `constraint` has exactly one of its members, and reaches the model."""
    await generate(client, constraint=given)
    constraint = scripted.requests[-1].constraint
    assert (constraint.kind, constraint.strict, constraint.any_whitespace) == (kind, True, False)


async def test_constraint_options(client, scripted):
    """GEN-13: `strict` and `disable_any_whitespace` are true when left out; null is no constraint."""
    await generate(client, constraint={"json": {}, "strict": False, "disable_any_whitespace": False})
    constraint = scripted.requests[-1].constraint
    assert (constraint.strict, constraint.any_whitespace) == (False, True)
    await generate(client, constraint=None)
    assert scripted.requests[-1].constraint is None


@pytest.mark.parametrize(("given", "read"), [(-3, -3), (2**31 - 1, 2**31 - 1), (None, 0)])
async def test_priority(client, scripted, given, read):
    """GEN-14: `priority` is a 32-bit integer, 0 when left out, and reaches the model."""
    await generate(client, priority=given)
    assert scripted.requests[-1].priority == read
    await generate(client)
    assert scripted.requests[-1].priority == 0


@pytest.mark.parametrize("given", ["high", 2**31, 1.5, True])
async def test_bad_priority(client, scripted, given):
    """GEN-14: anything else ends the stream with an error that names the field."""
    (entry,) = await generate(client, priority=given)
    assert "priority" in entry["error"]
    assert scripted.requests == []


async def test_prefill_only(real):
    """GEN-16, TOK-2, TOK-4: it ends with `prefill` and without a token; a later prompt begins with what it computed."""
    prompt = list(range(300, 400))
    (entry,) = await generate(real, prompt=prompt, prefill_only=True, max_tokens=0, lmtp=1)
    assert (entry["finish_reason"], entry["usage"]["completion_tokens"]) == ("prefill", 0)
    assert "token" not in entry
    entries = await generate(real, prompt=[*prompt, 7], max_tokens=1)
    assert entries[-1]["usage"]["cached_tokens"] >= 64


async def test_cache_salt(real):
    """GEN-20: what was computed under one salt is used again under no other, nor without; ids and logprobs stay."""
    asked = {"prompt": list(range(200, 280)), "max_tokens": 2, "lmtp": 1}
    found = [await generate(real, **asked, **salt) for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {})]
    found.append(await generate(real, **asked, cache_salt="a"))
    assert [entries[-1]["usage"]["cached_tokens"] >= 64 for entries in found] == [False, False, False, True, True]
    tokens = [[(entry["token"], entry["logprob"]) for entry in entries] for entries in found]
    assert tokens == [tokens[0]] * 5


async def test_cache_salt_of_a_score(real):
    """GEN-20: it holds for SCORE, which begins with what GENERATE has computed under the same salt alone."""
    prompt = list(range(100, 180))
    await generate(real, prompt=prompt, max_tokens=1, cache_salt="a")
    for number, (salt, reused) in enumerate([("b", False), ("a", True)]):
        await real.send(
            f'SCORE {{"prompt": {prompt}, "scored": [4, 5], "stream_id": {number}, "cache_salt": "{salt}", "lmtp": 1}}'
        )
        entries = await real.stream(number)
        assert (entries[-1]["usage"]["cached_tokens"] >= 64) is reused


async def test_client_of_a_stranger(real):
    """GEN-21, EXT-5, EXT-6: a server that does not believe a client does not announce the field, and says so of it."""
    for request in ('GENERATE {"prompt": [5], "max_tokens": 1', 'SCORE {"prompt": [5], "scored": [4]'):
        await real.send(f'{request}, "stream_id": 1, "client": "somebody", "lmtp": 1}}')
        assert await real.entries("MSG", 1) == [{"stream_id": 1, "ignored": ["client"]}]
        assert "error" not in (await real.stream(1))[-1]
    await real.send('MODEL_INFO {"stream_id": 2, "lmtp": 1}')
    (entry,) = await real.entries("MSG", 1)
    assert "cache_salt" in entry["model_info"]["extensions"]
    assert "client" not in entry["model_info"]["extensions"]


@pytest.mark.parametrize("command", ["GENERATE", "SCORE"])
def test_client_of_a_balancer(command):
    """GEN-21: a trusted client is believed, over a pipe or a socket; nobody else is."""
    frame = f'{command} {{"prompt": [1], "scored": [2], "stream_id": 1, "client": "somebody", "lmtp": 1}}'
    for trusted, client in ((True, "somebody"), (False, "")):
        session = ServerSession(trusted=trusted)
        assert session.receive(frame).request.client == client
        info = ModelInfoRequest("2", extended=True)
        session.answer(info, ModelInfo("m", "c", "t"))
        frames = []
        while (text := session.next_frame()) is not None:
            frames.append(text)
        assert ('"client"' in frames[-1]) is trusted


@pytest.mark.parametrize("given", ['""', "7", f'"{257 * "x"}"'])
async def test_bad_client(client, scripted, given):
    """GEN-21, ERR-5: what is no text of 1 to 256 characters is refused by name, whoever sends it."""
    await client.send(f'GENERATE {{"prompt": [1], "stream_id": 1, "client": {given}}}')
    (entry,) = await client.stream(1)
    assert "client" in entry["error"]
    assert "expected a text of 1 to 256 characters" in entry["error"]
    assert scripted.requests == []


@pytest.mark.parametrize("given", ['""', "7", f'"{257 * "x"}"'])
async def test_bad_cache_salt(client, scripted, given):
    """GEN-20, ERR-5: what is no text of 1 to 256 characters is refused by name."""
    await client.send(f'GENERATE {{"prompt": [1], "stream_id": 1, "cache_salt": {given}}}')
    (entry,) = await client.stream(1)
    assert "cache_salt" in entry["error"]
    assert "expected a text of 1 to 256 characters" in entry["error"]
    assert scripted.requests == []


@pytest.mark.parametrize(("given", "read"), [(True, True), (False, False), (None, False)])
async def test_prefill_only_reaches_the_model(client, scripted, given, read):
    """GEN-16: it is a boolean, false when left out."""
    await generate(client, prefill_only=given)
    assert scripted.requests[-1].prefill_only is read


async def test_bad_prefill_only(client, scripted):
    """GEN-16: anything else ends the stream with an error that names the field."""
    (entry,) = await generate(client, prefill_only="yes")
    assert "prefill_only" in entry["error"]
    assert scripted.requests == []


async def test_generated(real):
    """GEN-17: it counts as generated: the rest comes as it would have, text included, and it is no part of `usage`."""
    asked = {"prompt": "Once upon", "max_tokens": 20, "temperature": 1.2, "seed": 4, "presence_penalty": 0.5, "lmtp": 1}
    asked |= {"stop": [" qqq"], "logit_bias": {"1": -100}}
    whole = await generate(real, **asked)
    assert len(whole) == 20
    for cut in (1, 7, 19):
        rest = await generate(real, generated=tokens(whole)[:cut], **asked)
        assert rest[-1]["usage"]["completion_tokens"] == 20 - cut
        assert rest[-1]["usage"]["prompt_tokens"] == whole[-1]["usage"]["prompt_tokens"]
        assert [{**entry, "usage": 0} for entry in rest] == [{**entry, "usage": 0} for entry in whole[cut:]]


async def test_generated_is_whole(real):
    """GEN-17, TOK-4: where nothing is left the stream ends without a token."""
    (limit,) = await generate(real, max_tokens=2, generated=[7, 8])
    (eos,) = await generate(real, max_tokens=9, generated=[7, BOS])
    (stop,) = await generate(real, max_tokens=9, generated=[7, 8], stop=[8])
    reasons = [entry["finish_reason"] for entry in (limit, eos, stop)]
    assert reasons == ["length", "stop", "stop"]
    assert not any("token" in entry for entry in (limit, eos, stop))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"generated": "yes"}, "generated is"),
        ({"generated": [5, -1]}, "generated has -1 at index 1"),
        ({"generated": [5, "a"]}, "generated has"),
        ({"generated": [5, 512]}, "token id 512 in generated"),
        ({"generated": [5, 6, 7], "max_tokens": 2}, "generated has 3 ids"),
        ({"generated": [5] * 508, "max_tokens": 600}, "generated has 508 ids, which do not fit"),
        ({"generated": [BOS, 5]}, "generated has 1 at index 0"),
        ({"generated": [5, 6], "stop": [5]}, "generated has 5 at index 0"),
        ({"generated": [403, 407, 5], "stop": ["upon"]}, "generated goes on at index 2"),
        ({"generated": [5], "constraint": {"regex": "[0-9]+"}}, "generated has 5 at index 0, which the constraint"),
    ],
)
async def test_bad_generated(real, given, words):
    """GEN-17, ERR-5: ids that no such stream can have generated end it with an error that names them."""
    (entry,) = await generate(real, **{"max_tokens": 9, **given})
    assert words in entry["error"]


async def test_generated_beside_processors(real, plugin):
    """GEN-17, GEN-18: a logits processor stands where it stood behind these ids, or refuses before any work."""
    asked = {"max_tokens": 9, "seed": 4, "temperature": 1.2, "logit_bias": {"1": -100}, "resumable": True}
    asked |= {"logits_processors": [{"name": "walk"}]}
    whole = await generate(real, **asked)
    assert whole[0]["seed"] == 4
    (first, *rest) = await generate(real, generated=tokens(whole)[:5], **asked)
    assert [{**first, "seed": None}, *rest] == [{**whole[5], "seed": None}, *whole[6:]]
    asked["logits_processors"] = [{"name": "forget"}]
    whole = await generate(real, **asked)
    assert "seed" not in whole[0]
    (refused,) = await generate(real, generated=tokens(whole)[:5], **asked)
    assert "the logits processor forget cannot go on" in refused["error"]


async def test_generated_and_resumable_reach_the_model(client, scripted):
    """GEN-17, GEN-18: ids, and a boolean; none and false when left out."""
    await generate(client, generated=[5, 6], resumable=True)
    await generate(client, generated=None, resumable=None)
    assert [(request.generated, request.resumable) for request in scripted.requests] == [((5, 6), True), ((), False)]
    (entry,) = await generate(client, resumable=1)
    assert "resumable" in entry["error"]


async def test_the_seed_is_told(real):
    """GEN-18: only with `resumable`, on the first entry: the request's own, or the one drawn, below 2^53."""
    own = await generate(real, max_tokens=3, temperature=1, seed=-5, resumable=True)
    assert [entry.get("seed") for entry in own] == [-5, None, None]
    first, *rest = await generate(real, max_tokens=9, temperature=2, resumable=True, logit_bias={"1": -100})
    assert 0 <= first["seed"] < 2**53
    asked = {"max_tokens": 9, "temperature": 2, "seed": first["seed"], "logit_bias": {"1": -100}}
    assert await generate(real, generated=[first["token"]], **asked) == rest
    assert not any("seed" in entry for entry in await generate(real, **asked))


@pytest.mark.parametrize("given", [5, {}, {"regex": "a", "json": {}}, {"regex": 5}, {"regexp": "a"}, {"choice": []}])
async def test_bad_constraints(client, scripted, given):
    """GEN-13: what is no constraint ends the stream with an error before its first token."""
    entries = await generate(client, constraint=given)
    assert len(entries) == 1
    assert "constraint" in entries[0]["error"]
    assert scripted.requests == []


@pytest.mark.parametrize(
    ("stop", "text", "said"),
    [
        (None, "a little girl and a dog", None),
        (" and", "a little girl", "the stop string ' and'"),
        (421, "a little girl", "the stop id 421"),
    ],
)
async def test_stops_within_constraints(real, stop, text, said):
    """GEN-13, GEN-11: a stop text and a stop id cut a stream that a constraint holds, which its last entry says."""
    held = {"choice": ["a little girl and a dog"]}
    entries = await generate(real, prompt="Once", max_tokens=30, constraint=held, stop=stop, lmtp=1)
    assert "".join(entry["text"] for entry in entries) == text
    assert entries[-1]["finish_reason"] == "stop"
    if said is None:
        assert "warnings" not in entries[-1]
    else:
        assert entries[-1]["warnings"] == [f"the answer was cut at {said}, before its constraint had ended it"]


async def test_names_come_once(real):
    """GEN-13: in an object no name comes twice; what can only be an object that repeats one is an error."""
    few = {"type": "object", "patternProperties": {"^[ab]$": {"const": 1}}, "additionalProperties": False}
    for seed in range(8):
        held = {"json": {**few, "minProperties": 2}}
        entries = await generate(real, prompt="Once", max_tokens=30, constraint=held, seed=seed, temperature=1)
        assert "".join(entry["text"] for entry in entries) in {'{"a":1,"b":1}', '{"b":1,"a":1}'}
        assert entries[-1]["finish_reason"] == "stop"
    (entry,) = await generate(real, constraint={"json": {**few, "minProperties": 3}}, lmtp=1)
    assert entry["error_code"] == "invalid_constraint"


async def test_finished_answers_are_validated(real, monkeypatch):
    """GEN-13: what is whole and not valid ends with an error after its tokens, and never with `stop`."""
    monkeypatch.setattr("lmtool.inference.guide.json_validation._object", lambda members: {"a": len(members)})
    held = {"json": {"type": "object", "properties": {"a": {"const": 5}}, "required": ["a"]}}
    held["json"]["additionalProperties"] = False
    entries = await generate(real, prompt="Once", max_tokens=30, constraint=held, lmtp=1)
    assert "".join(entry.get("text", "") for entry in entries) == '{"a":5}'
    assert entries[-1]["error_code"] == "invalid_answer"
    assert not any(entry.get("finish_reason") for entry in entries)


async def test_logits_processors(client, scripted):
    """GEN-15: they reach the model in order; null and an empty list are none."""
    await generate(client, logits_processors=[{"name": "a", "args": {"x": 1}}, {"name": "b"}])
    named = scripted.requests[-1].logits_processors
    assert [(one.name, dict(one.arguments)) for one in named] == [("a", {"x": 1}), ("b", {})]
    for nothing in ([], None):
        await generate(client, logits_processors=nothing)
        assert scripted.requests[-1].logits_processors == ()


@pytest.mark.parametrize("given", [5, {}, [5], [{}], [{"name": 5}], [{"name": "a", "x": 1}], [{"name": "a"}] * 9])
async def test_bad_logits_processors(client, scripted, given):
    """GEN-15: what names none ends the stream with an error that names the field."""
    (entry,) = await generate(client, logits_processors=given)
    assert "logits_processors" in entry["error"]
    assert scripted.requests == []


@pytest.mark.parametrize("given", ["0", "-1", "NaN", "1e999", "86401", '"soon"', "true"])
@pytest.mark.parametrize("command", ["GENERATE", "SCORE"])
async def test_bad_deadlines(client, scripted, command, given):
    """GEN-19, ERR-5: what is no number of seconds up to a day is refused by name, before anything is begun."""
    await client.send(f'{command} {{"prompt": [1], "scored": [2], "stream_id": 1, "deadline": {given}}}')
    (entry,) = await client.stream(1)
    assert entry["error"] == f"deadline is {given}; expected a number above 0, at most 86400"
    assert scripted.requests == []


async def test_deadline(stepped, manual):
    """GEN-19: the stream ends with an error behind its tokens, within a step; its neighbours go on."""
    await stepped.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 9, "deadline": 0.02, "lmtp": 1}')
    await stepped.send('GENERATE {"prompt": [1], "stream_id": 2, "max_tokens": 2}')
    await stepped.send('SCORE {"prompt": [1], "scored": [2, 3, 4], "stream_id": 3, "deadline": 0.02}')
    await stepped.alive()
    manual.step()
    await until(lambda: len(manual.cancelled) == 2)
    manual.step()
    found = await stepped.streams(3)
    for stream in (1, 3):
        token, last = found[stream]
        assert "token" in token
        assert (last["error_code"], last["retryable"]) == ("timeout", False)
        assert last["error"] == "the deadline of 0.02 s is over; send the request again with a longer one"
    assert [entry["finish_reason"] for entry in found[2]] == [None, "length"]
    assert manual.running == {}


async def test_deadline_that_is_not_reached(client):
    """GEN-19: it changes nothing about a stream that ends before, and nothing comes for its id afterwards."""
    asked = {"deadline": 0.05, "max_tokens": 3}
    assert await generate(client, **asked) == await generate(client, max_tokens=3)
    await asyncio.sleep(0.06)
    assert len(await generate(client, max_tokens=4)) == 4


async def test_deadline_in_the_queue():
    """GEN-19: the time runs while the stream waits, and what it held is free for others once it is over."""
    loader = Loader(EngineConfig(device="cpu", dtype="float32", threads=1, max_streams=1))
    model = loader.load(str(STORIES), lambda _: None)
    try:
        async with serving(model) as served, wire(served) as client:
            asked = '"prompt": [1, 403], "max_tokens": 400, "ignore_eos": true, "lmtp": 1'
            await client.send(f'GENERATE {{{asked}, "stream_id": "runs", "deadline": 0.05}}')
            await client.send(f'GENERATE {{{asked}, "stream_id": "waits", "deadline": 0.01}}')
            await client.send(f'GENERATE {{{asked}, "stream_id": "next", "max_tokens": 2}}')
            found = await client.streams(3)
            assert [entry.get("error_code") for entry in found["waits"]] == ["timeout"]
            assert found["runs"][-1]["error_code"] == "timeout"
            assert 0 < len(found["runs"]) < 400
            assert found["next"][-1]["finish_reason"] == "length"
    finally:
        model.close()
