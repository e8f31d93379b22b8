"""LMTP, GENERATE."""

import json

import pytest

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


@pytest.mark.parametrize("prompt", [[-1], ["a"], [1.5], [None], {"a": 1}, 5, True, [[1]], [2**40]])
async def test_bad_prompts(client, prompt):
    """GEN-1, ERR-1: anything but a list of integers from 0 ends the stream with an error."""
    (entry,) = await generate(client, prompt=prompt)
    assert "prompt" in entry["error"]


async def test_models(client):
    """GEN-2: the model by its name, or the only one; another name is an error of the stream."""
    assert len(await generate(client, model="scripted", prompt=[1])) == 32
    assert len(await generate(client, prompt=[1])) == 32
    assert len(await generate(client, prompt=[1], model=None)) == 32
    (entry,) = await generate(client, prompt=[1], model="other")
    assert "other" in entry["error"]


async def test_max_tokens(client):
    """GEN-3: `max_tokens` is 32 unless given."""
    assert len(await generate(client, prompt=[1])) == 32
    assert len(await generate(client, prompt=[1], max_tokens=7)) == 7


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


async def test_greedy(real):
    """GEN-4: a temperature of 0 or less, and none at all, take the most likely token."""
    plain = await generate(real, max_tokens=10, top_logprobs=1)
    assert tokens(plain) == [432, 383, 286, 261, 376, 298, 315, 421, 395, 317]
    assert all(list(entry["top_logprobs"]) == [str(entry["token"])] for entry in plain)
    assert await generate(real, max_tokens=10, temperature=0) == plain
    assert await generate(real, max_tokens=10, temperature=-1.5, seed=3) == plain


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
    ("asked", "found"), [(None, 1), (1, 1), (5, 5), (256, 256), (257, 256), (50_000, 256), (2**31 - 1, 256)]
)
async def test_alternatives(real, asked, found):
    """GEN-6, SCO-5: `top_logprobs` is 1 unless given; above 256 it counts as 256."""
    entries = await generate(real, max_tokens=2, top_logprobs=asked)
    assert [len(entry["top_logprobs"]) for entry in entries] == [found, found]
    if asked is not None:
        await real.send(f'SCORE {{"prompt": [1], "scored": [2], "stream_id": 7, "top_logprobs": {asked}}}')
        (scored,) = await real.stream(7)
        assert len(scored["top_logprobs"]) in {found, found + 1}


async def test_limits_of_the_choice(real):
    """GEN-7: `top_k` 1 is greedy at any temperature, a tiny `top_p` too; a repetition penalty shows."""
    greedy = tokens(await generate(real, max_tokens=20))
    assert tokens(await generate(real, max_tokens=20, temperature=5, top_k=1, seed=1)) == greedy
    assert tokens(await generate(real, max_tokens=20, temperature=5, top_p=1e-6, seed=1)) == greedy
    assert tokens(await generate(real, max_tokens=20, temperature=5, seed=1)) != greedy
    penalised = tokens(await generate(real, max_tokens=60, repetition_penalty=5.0))
    assert len(set(penalised)) > len(set(tokens(await generate(real, max_tokens=60))))


async def test_neighbours(real):
    """GEN-8, GEN-10: tokens, their number, logprobs and alternatives are the same alone and in a crowd."""
    kinds = [
        {"max_tokens": 9, "top_logprobs": 2},
        {"max_tokens": 5, "temperature": 1.0, "seed": 7, "top_logprobs": 0},
        {"max_tokens": 12, "temperature": 0.7, "seed": 8, "top_k": 20, "top_logprobs": 5},
        {"max_tokens": 3, "logit_bias": {"300": 3}},
    ]
    alone = [await generate(real, number, **fields) for number, fields in enumerate(kinds)]
    for number, fields in enumerate(kinds):
        request = {"prompt": [BOS, 403, 407, 261, 378], "stream_id": number, **fields}
        await real.send(f"GENERATE {json.dumps(request)}")
    crowd = await real.streams(len(kinds))
    assert [crowd[number] for number in range(len(kinds))] == alone
    assert [len(entries) for entries in alone] == [9, 5, 12, 3]


async def test_further_limits(real):
    """GEN-9: `min_p` 1 is greedy; penalties, `min_tokens` and `ignore_eos` show."""
    greedy = tokens(await generate(real, max_tokens=20))
    assert tokens(await generate(real, max_tokens=20, temperature=3, min_p=1, seed=1)) == greedy
    for penalty in ("presence_penalty", "frequency_penalty"):
        assert len(set(tokens(await generate(real, max_tokens=20, **{penalty: 100})))) == 20
    eos = {"logit_bias": {str(BOS): 100}, "max_tokens": 4}
    assert len(await generate(real, **eos)) == 1
    assert len(await generate(real, **eos, ignore_eos=True)) == 4
    assert len(await generate(real, **eos, min_tokens=2)) == 3


async def test_seeds(real):
    """GEN-10: the same seed gives the same tokens, another one others."""
    sampled = [await generate(real, max_tokens=20, temperature=2, seed=seed) for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1]
    assert tokens(sampled[0]) != tokens(sampled[2])


async def test_stops(real):
    """GEN-11: a stream ends with `stop` after a stop id, and before a stop text is part of its text."""
    for fields in ({"stop": 261}, {"stop": [261]}, {"stop_token_ids": [261]}):
        entries = await generate(real, max_tokens=20, **fields)
        assert tokens(entries) == [432, 383, 286, 261]
        assert entries[-1]["finish_reason"] == "stop"
    entries = await generate(real, prompt="Once upon a time", max_tokens=30, stop=["named", "zzz"])
    text = "".join(entry["text"] for entry in entries)
    assert text == ", there was a little girl "
    assert entries[-1]["finish_reason"] == "stop"


async def test_no_tokens(real):
    """GEN-12, TOK-4: `max_tokens` 0 ends with `length` and without a token."""
    assert await generate(real, max_tokens=0) == [{"stream_id": 1, "finish_reason": "length"}]


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
    monkeypatch.setattr("lmtool.guide.check._object", lambda members: {"a": len(members)})
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
