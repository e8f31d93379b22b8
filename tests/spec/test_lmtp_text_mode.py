"""LMTP, Text mode."""

import json

import pytest

ONCE = "Once upon a time"


async def ask(client, command="GENERATE", **fields):
    await client.send(f"{command} {json.dumps({'stream_id': 1, **fields})}")
    return await client.stream(1)


async def test_text_prompts(real):
    """TXT-1: a text is tokenized with the bos that the tokenizer adds, and not templated; `scored` may be text too.

    In a list of texts and ids, texts behind the first entry are continuations.
    """
    by_text = await ask(real, prompt=ONCE, max_tokens=10)
    by_ids = await ask(real, prompt=[1, 403, 407, 261, 378], max_tokens=10)
    assert [entry["token"] for entry in by_text] == [entry["token"] for entry in by_ids]
    for mixed in ([ONCE], ["Once", 407, " a time"], [1, 403, " upon", 261, 378]):
        entries = await ask(real, prompt=mixed, max_tokens=10)
        assert [entry["token"] for entry in entries] == [entry["token"] for entry in by_ids], mixed
        assert "text" in entries[0]
    scored = await ask(real, "SCORE", prompt=ONCE, scored=", there")
    assert [entry["token"] for entry in scored] == [432, 383]
    assert [entry["logprob"] for entry in scored] == [entry["logprob"] for entry in by_ids[:2]] or all(
        abs(one["logprob"] - other["logprob"]) < 1e-4 for one, other in zip(scored, by_ids, strict=False)
    )


async def test_messages(client, scripted, real):
    """TXT-2: `messages` are rendered by the model's template, an error without one; never beside a prompt.

    A message's `tokens` stand where its content would.
    """
    messages = [{"role": "user", "content": "hi"}]
    assert len(await ask(client, messages=messages, max_tokens=3)) == 3
    (both,) = await ask(client, messages=messages, prompt=[1])
    assert "both prompt and messages" in both["error"]
    await ask(client, messages=[{"role": "assistant", "content": "", "tokens": [7, 9]}])
    assert scripted.requests[-1].prompt.messages[0].tokens == (7, 9)
    (none,) = await ask(real, messages=messages)
    assert "template" in none["error"]


async def test_models_without_ids():
    """TXT-5: entries of a pool have text and no ids, with tokens by their bytes and tool calls where there are any."""
    from dataclasses import replace

    from lmtool.core.types import NamedToken, TokenOutput, ToolCallPart
    from lmtool.protocol.lmtp import answer_payloads

    token = NamedToken("é".encode()[:1], -0.5, ((b"a", -0.5), (b"b", -1.5)))
    sent = TokenOutput("1", text="", named_tokens=(token,), tool_calls=(ToolCallPart(0, "c1", "weather", "{"),))
    written = answer_payloads.write_output(sent, extended=True)
    assert b'"token"' not in written
    assert answer_payloads.read_tokens(f"[{written.decode()}]") == (sent,)
    plain = replace(sent, text="Hi", named_tokens=(), tool_calls=())
    entry = json.loads(answer_payloads.write_output(plain, extended=True))
    assert entry == {"stream_id": 1, "finish_reason": None, "text": "Hi"}
    called = "main timeout 1200ms, backup ok 86ms"
    for last in (replace(plain, finish_reason="stop", attempts=called), TokenOutput("1", error="no", attempts=called)):
        written = answer_payloads.write_output(last, extended=True)
        assert json.loads(written)["attempts"] == called
        (read,) = answer_payloads.read_tokens(f"[{written.decode()}]")
        assert read.attempts == called


async def test_seams():
    """TXT-6: the first entry behind the place where another member went on tells it, whatever else the entry has."""
    from dataclasses import replace

    from lmtool.core.seam import Seam
    from lmtool.core.types import NamedToken, TokenOutput, Usage
    from lmtool.protocol.lmtp import answer_payloads

    seam = {"at": 10, "before": "main", "after": "backup"}
    plain = TokenOutput("1", text="time", seam=Seam(10, "main", "backup"))
    last = replace(plain, text="", finish_reason="stop", usage=Usage(1, 2), attempts="backup ok 1ms")
    for sent in (plain, replace(plain, named_tokens=(NamedToken(b"time", -0.5),)), last):
        written = answer_payloads.write_output(sent, extended=True)
        assert json.loads(written)["seam"] == seam
        assert answer_payloads.read_tokens(f"[{written.decode()}]") == (sent,)
    assert "seam" not in json.loads(answer_payloads.write_output(replace(plain, seam=None), extended=True))


async def test_thoughts_on_the_wire():
    """TXT-7: an entry of a thought has `reasoning`, and the usage its tokens; without the field nothing is new."""
    from lmtool.core.types import NamedToken, TokenOutput, Usage
    from lmtool.protocol.lmtp import answer_payloads

    thought = TokenOutput("1", 5, -0.5, (), "", reasoning="Hm")
    last = TokenOutput("1", 6, -0.5, (), ".", finish_reason="stop", usage=Usage(1, 2, 0, 1))
    pool = TokenOutput("1", text="", named_tokens=(NamedToken(b"Hm", -0.5),), reasoning="Hm")
    for sent in (thought, last, pool):
        written = answer_payloads.write_output(sent, extended=True)
        assert answer_payloads.read_tokens(f"[{written.decode()}]") == (sent,)
    assert json.loads(answer_payloads.write_output(thought, extended=True))["reasoning"] == "Hm"
    assert json.loads(answer_payloads.write_output(last, extended=True))["usage"]["reasoning_tokens"] == 1
    plain = TokenOutput("1", 6, -0.5, (), ".", finish_reason="stop", usage=Usage(1, 2, 0))
    entry = json.loads(answer_payloads.write_output(plain, extended=True))
    assert "reasoning" not in entry
    assert entry["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 0}


@pytest.mark.parametrize("given", [True, False, {}, {"budget": 0}, {"budget": 5, "prefill": "No"}])
async def test_reasoning_of_a_request(client, scripted, given):
    """TXT-7: a switch, or an object with budget and prefill; false is nothing. So is a turn's thought taken."""
    from lmtool.core.reasoning import Reasoning

    said = {"role": "assistant", "content": "No", "reasoning": "Hm"}
    await ask(client, messages=[said], max_tokens=1, reasoning=given)
    request = scripted.requests[-1]
    asked = {"budget": None, "prefill": "", **(given if isinstance(given, dict) else {})}
    assert request.reasoning == (None if given is False else Reasoning(**asked))
    assert request.prompt.messages[0].reasoning == "Hm"


@pytest.mark.parametrize("given", [5, "yes", {"budget": -1}, {"budget": "many"}, {"budge": 5}])
async def test_bad_reasoning(client, given):
    """TXT-7, ERR-5: what is neither is refused by name."""
    (entry,) = await ask(client, prompt="Hi", reasoning=given)
    assert "reasoning" in entry["error"]


async def test_a_model_that_does_not_think(real):
    """TXT-7: it answers as it does without the field, and its description says nothing of thoughts."""
    plain, asked = [await ask(real, prompt=ONCE, max_tokens=5, **more) for more in ({}, {"reasoning": {"budget": 1}})]
    for entry in (*plain, *asked):
        del entry["stream_id"]
    assert asked == plain


async def test_whole_characters(real):
    """TXT-3: the texts joined are the stream's text, and none is half a character."""
    entries = await ask(real, prompt=ONCE, max_tokens=100)
    text = "".join(entry["text"] for entry in entries)
    assert text.startswith(", there was a little girl named Lily.")
    snowman = "☃".encode()
    ids = [3 + byte for byte in snowman]  # the tokenizer's byte tokens begin at 3
    pieces = [
        entry.get("text", "") for entry in await ask(real, "SCORE", prompt=[1, 403], scored=[*ids, 403], text=True)
    ]
    assert pieces[:3] == ["", "", "☃"]
