"""LMTP, BUFFER."""

import asyncio
import json

import pytest

from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.protocol.lmtp.messages import EXTENSIONS
from tests.protocol.lmtp.harness import conversation, serving, until, wire
from tests.scripted_model import ScriptedModel, prompt_ids
from tests.spec.conftest import STORIES

BOS = 1
LARGE = 2**31 - 1


class Spelling(ScriptedModel):
    """A model with a tokenizer, which is known once the model is loaded."""

    def __init__(self):
        super().__init__()
        self.texts = load_tokenizer(str(STORIES))

    def tokenizer(self, model=None):
        self.check_name(model)
        return self.texts if self.loaded.is_set() else None


async def ask(client, command, stream_id=1, **fields):
    """One request's answer: the entries of a stream, or the entry of a MSG."""
    await client.send(f"{command} {json.dumps({'stream_id': stream_id, **fields})}")
    if command in ("GENERATE", "SCORE"):
        return await client.stream(stream_id)
    (entry,) = await client.entries("MSG", 1)
    assert entry["stream_id"] == stream_id
    return entry


async def change(client, name="a", **fields):
    return await ask(client, "BUFFER", 9, name=name, **fields)


async def length_of(client, name="a"):
    return (await change(client, name, append=[]))["buffer"]["length"]


async def sent_prompt(client, model, prompt, **fields):
    """The ids that a model gets for a prompt."""
    await ask(client, "GENERATE", prompt=prompt, **{"max_tokens": 1, **fields})
    return prompt_ids(model.requests[-1].prompt)


async def test_append(client, scripted, served):
    """BUF-1: it makes the buffer, adds to it, and is answered with name and length; each connection has its own."""
    assert await change(client, append=[5, 6]) == {"stream_id": 9, "buffer": {"name": "a", "length": 2}}
    assert (await change(client, append=[7]))["buffer"] == {"name": "a", "length": 3}
    assert (await change(client, "b", append=[]))["buffer"] == {"name": "b", "length": 0}
    assert await sent_prompt(client, scripted, [{"buffer": "a"}]) == (5, 6, 7)
    assert await sent_prompt(client, scripted, [{"buffer": "b"}, 1, "x"]) == (1, ord("x"))
    async with wire(served) as other:
        (entry,) = await ask(other, "GENERATE", prompt=[{"buffer": "a"}])
        assert "buffer 'a' is not known on this connection" in entry["error"]


async def test_texts(real):
    """BUF-2, TXT-1: each text is tokenized by itself, as a text's start only at the start of an empty buffer."""
    whole = await ask(real, "GENERATE", prompt=["Once upon", 261, " time"], max_tokens=8, lmtp=1)
    assert (await change(real, append="Once upon"))["buffer"]["length"] == 3
    assert (await change(real, append=[261, " time"]))["buffer"]["length"] == whole[-1]["usage"]["prompt_tokens"]
    by_buffer = await ask(real, "GENERATE", prompt=[{"buffer": "a"}], max_tokens=8, text=True)
    assert [entry["token"] for entry in by_buffer] == [entry["token"] for entry in whole]
    alone = await ask(real, "GENERATE", prompt=["Once", " upon"], max_tokens=1)
    assert (await change(real, "two", append="Once"))["buffer"]["length"] == 2
    assert (await change(real, "two", append=" upon"))["buffer"]["length"] == alone[-1]["usage"]["prompt_tokens"]
    await change(real, "ids", append=[BOS, 403])
    (entry,) = await ask(real, "SCORE", prompt=[{"buffer": "ids"}], scored=[407])
    await change(real, "text", append=["Once"])
    assert await ask(real, "SCORE", prompt=[{"buffer": "text"}], scored=[407]) == [entry]


async def test_texts_without_a_tokenizer(client):
    """BUF-2: where the model's tokenizer is not there, texts are refused and ids taken."""
    entry = await change(client, append=[1, "text"], lmtp=1)
    assert "there is no tokenizer" in entry["error"]
    assert entry["error_code"] == "invalid_request"
    assert await length_of(client) == 0


async def test_prompts(client, scripted):
    """BUF-3: buffers stand for their first ids among ids and texts, in GENERATE and SCORE, however often."""
    await change(client, append=[5, 6, 7])
    await change(client, "b", append=[8])
    prompt = [1, {"buffer": "a", "length": 2}, {"buffer": "b"}, "x", {"buffer": "a", "length": 0}, {"buffer": "a"}]
    assert await sent_prompt(client, scripted, prompt) == (1, 5, 6, 8, ord("x"), 5, 6, 7)
    assert await sent_prompt(client, scripted, [{"buffer": "a", "length": None}, 9]) == (5, 6, 7, 9)
    await ask(client, "SCORE", prompt=[{"buffer": "a"}, 4], scored=[2])
    assert scripted.requests[-1].prompt == (5, 6, 7, 4)


async def test_text_mode_of_buffers(client):
    """BUF-3, TXT-4: a request is in text mode where a text is among the entries, whatever the buffer was made of."""
    await change(client, append=[5])
    for prompt, text in (([{"buffer": "a"}], False), ([{"buffer": "a"}, 3], False), ([{"buffer": "a"}, "x"], True)):
        entries = await ask(client, "GENERATE", prompt=prompt)
        assert ("text" in entries[0]) is text


async def test_texts_of_a_prompt_with_buffers(real):
    """BUF-3: a text behind a buffer, an empty one too, is no text's start."""
    await change(real, append=[])
    entries = await ask(real, "GENERATE", prompt=[{"buffer": "a"}, "Once"], max_tokens=1, lmtp=1)
    behind = await ask(real, "GENERATE", prompt=[5, "Once"], max_tokens=1)
    assert entries[-1]["usage"]["prompt_tokens"] == behind[-1]["usage"]["prompt_tokens"] - 1
    assert (await ask(real, "GENERATE", prompt=["Once"], max_tokens=1))[-1]["usage"]["prompt_tokens"] == 2


async def test_into(client, scripted):
    """BUF-4: the ids of the stream, those of `generated` before them, are appended once it has ended."""
    await change(client, append=[5, 6])
    entries = await ask(client, "GENERATE", prompt=[{"buffer": "a"}], into="a", max_tokens=3)
    ids = [entry["token"] for entry in entries]
    assert await sent_prompt(client, scripted, [{"buffer": "a"}]) == (5, 6, *ids)
    entries = await ask(client, "GENERATE", prompt=[5], into="new", generated=[3, 4], max_tokens=3)
    ids = [entry["token"] for entry in entries]
    assert await sent_prompt(client, scripted, [{"buffer": "new"}]) == (3, 4, *ids)
    assert all(getattr(request, "into", None) is None for request in scripted.requests)


async def test_into_of_streams_that_do_not_end_well(stepped, manual):
    """BUF-4: after CANCEL and after an error nothing is appended, and the buffer can be changed again."""
    await change(stepped, append=[5])
    await stepped.send('GENERATE {"prompt": [1], "stream_id": 1, "into": "a"}')
    await until(lambda: manual.running)
    manual.step()
    await stepped.receive()
    await stepped.send('CANCEL {"stream_id": 1}')
    await until(lambda: manual.cancelled)
    manual.step()
    assert (await stepped.stream(1))[-1]["finish_reason"] == "cancelled"
    assert "error" in (await ask(stepped, "GENERATE", prompt=[5000], into="a"))[0]
    assert (await change(stepped, append=[6]))["buffer"]["length"] == 2


async def test_a_buffer_that_a_stream_appends_to(stepped, manual):
    """BUF-4: until the end it is read as it was; what would change it is refused, and named."""
    await change(stepped, append=[5])
    await stepped.send('GENERATE {"prompt": [1], "stream_id": 1, "into": "a", "max_tokens": 1}')
    await until(lambda: manual.running)
    for fields in ({"append": [6]}, {"drop": True}):
        assert "appends to buffer 'a' at its end" in (await change(stepped, **fields))["error"]
    (entry,) = await ask(stepped, "GENERATE", 2, prompt=[1], into="a")
    assert "appends to buffer 'a' at its end" in entry["error"]
    await stepped.send('GENERATE {"prompt": [{"buffer": "a"}], "stream_id": 3, "max_tokens": 1}')
    await until(lambda: len(manual.running) == 2)
    assert manual.requests[-1].prompt == (5,)
    manual.step()
    await stepped.streams(2)
    assert await length_of(stepped) == 2


async def test_order():
    """BUF-5: a request behind a text waits for it, and finds the buffer as it was sent before it."""
    model = Spelling()
    model.loaded.clear()
    async with conversation(model) as client:
        await client.send(
            'BUFFER {"stream_id": 1, "name": "a", "append": "Once upon"}',
            'GENERATE {"stream_id": 2, "prompt": [{"buffer": "a"}], "max_tokens": 1}',
            'BUFFER {"stream_id": 3, "name": "a", "append": [7]}',
            'GENERATE {"stream_id": 4, "prompt": [{"buffer": "a"}], "max_tokens": 1}',
            'GENERATE {"stream_id": 5, "prompt": [6], "max_tokens": 1}',
            'GENERATE {"stream_id": 6, "prompt": [{"buffer": "a"}], "max_tokens": 1}',
            'CANCEL {"stream_id": 6}',
        )
        first = await client.streams(2)
        assert {stream: entries[-1]["finish_reason"] for stream, entries in first.items()} == {
            5: "length",
            6: "cancelled",
        }
        model.loaded.set()
        answers = []
        while len(answers) < 4:
            answers += [entry["stream_id"] for entry in (await client.receive())[1]]
        assert [stream for stream in answers if stream in (1, 2)] == [1, 2]
        assert [stream for stream in answers if stream in (3, 4)] == [3, 4]
        prompts = [request.prompt for request in model.requests]
        assert prompts == [(6,), (BOS, 403, 407), (BOS, 403, 407, 7)]


async def test_the_client_leaves_while_a_text_waits():
    """BUF-1, TRA-8: buffers, and what waits for them, are gone with their connection."""
    model = Spelling()
    model.loaded.clear()
    async with serving(model) as served:
        async with wire(served) as client:
            await client.send(
                'BUFFER {"stream_id": 1, "name": "a", "append": "Once"}',
                'GENERATE {"stream_id": 2, "prompt": [{"buffer": "a"}], "into": "a"}',
                'GENERATE {"stream_id": 3, "prompt": [1], "max_tokens": 1}',
            )
            await client.stream(3)
        await until(lambda: not served.server.connections)
        model.loaded.set()
        async with wire(served) as client:
            await client.alive()
        assert [request.stream_id for request in model.requests] == ["3"]


async def test_drop(client):
    """BUF-6, BUF-7: a dropped buffer is not known any more, and can be made again."""
    await change(client, append=[5])
    assert (await change(client, drop=True))["buffer"] == {"name": "a", "length": 0}
    entry = await change(client, drop=True, lmtp=1)
    assert "buffer 'a' is not known" in entry["error"]
    assert entry["error_code"] == "unknown_buffer"
    assert await length_of(client) == 0


async def test_ttl(client):
    """BUF-6, BUF-7: what no request has named for so long has expired; only a drop is answered then."""
    assert (await change(client, append=[5, 6], ttl=0.01, lmtp=1))["buffer"]["length"] == 2
    await change(client, "b", append=[1])
    await change(client, "b", ttl=3600)
    await asyncio.sleep(0.05)
    for answer in (await change(client, append=[7]), *await ask(client, "GENERATE", prompt=[{"buffer": "a"}])):
        assert "buffer 'a' has expired: it was not used for 0.01 s" in answer["error"]
        assert answer["error_code"] == "unknown_buffer"
    assert await length_of(client, "b") == 1
    await change(client, drop=True)
    assert await length_of(client) == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"append": [1]}, "name is missing; expected a string of 1 to 256 characters"),
        ({"name": 5, "append": [1]}, "name is 5"),
        ({"name": "", "append": [1]}, 'name is ""'),
        ({"name": "x" * 257, "append": [1]}, "name is"),
        ({"name": "a", "append": [1, -1]}, "append has -1 at index 1"),
        ({"name": "a", "append": [1, LARGE + 1]}, "append has 2147483648 at index 1"),
        ({"name": "a", "append": {"buffer": "b"}}, "append has"),
        ({"name": "a", "append": 5}, "append is 5"),
        ({"name": "a", "append": [{"buffer": "b"}]}, "append has"),
        ({"name": "a"}, "BUFFER says nothing to do"),
        ({"name": "a", "drop": False}, "BUFFER says nothing to do"),
        ({"name": "a", "drop": True, "append": [1]}, "both drop and append"),
        ({"name": "a", "drop": True, "ttl": 1}, "both drop and ttl"),
        ({"name": "a", "drop": 1}, "drop is 1"),
        ({"name": "a", "ttl": 0}, "ttl is 0"),
        ({"name": "a", "ttl": 1e9}, "ttl is"),
        ({"name": "a", "append": [1], "model": 3}, "model is 3"),
        ({"name": "a", "append": "x", "model": "other"}, "'other' is not served"),
        ({"name": "a", "ttl": 1}, "buffer 'a' is not known"),
    ],
)
async def test_bad_buffers(client, fields, words):
    """BUF-1, BUF-6, BUF-7, ERR-2, ERR-5: each wrong field is named, and nothing is changed."""
    entry = await ask(client, "BUFFER", **fields)
    assert words in entry["error"]
    assert await length_of(client) == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": [{"buffer": "b"}]}, "buffer 'b' is not known on this connection"),
        ({"prompt": [{"buffer": "a", "length": 4}]}, "length is 4, but buffer 'a' has 3 ids"),
        ({"prompt": [{"buffer": "a", "length": -1}]}, 'prompt has {"buffer": "a", "length": -1} at index 0'),
        ({"prompt": [{"buffer": "a", "length": "x"}]}, "prompt has"),
        ({"prompt": [{"buffer": "a", "ids": 2}]}, "prompt has"),
        ({"prompt": [1, {"length": 2}]}, 'prompt has {"length": 2} at index 1'),
        ({"prompt": [{"buffer": 3}]}, "prompt has"),
        ({"prompt": [{"buffer": "x" * 257}]}, "prompt has"),
        ({"prompt": {"buffer": "a"}}, "prompt has"),
        ({"prompt": [1], "into": 5}, "into is 5"),
        ({"prompt": [1], "into": ""}, 'into is ""'),
        ({"prompt": [1], "into": "a", "prefill_only": True}, "both into and prefill_only"),
        ({"prompt": [1], "into": "a", "max_tokens": 98}, "buffer 'a' cannot take 98 ids more"),
        ({"prompt": [{"buffer": "a"}] * 34}, "102 tokens > 100 maximum"),
        ({"prompt": [{"buffer": "bad"}]}, "4000 is not in the vocabulary"),
    ],
)
async def test_bad_prompts_of_buffers(fields, words):
    """BUF-3, BUF-4, BUF-7, ERR-1, ERR-5: each ends its stream with an error that names it; nothing is computed."""
    model = ScriptedModel()
    async with conversation(model, config=ServerConfig(max_buffer_bytes=400)) as client:
        await change(client, append=[5, 6, 7])
        if "bad" in str(fields):
            await change(client, "bad", append=[4000])
        (entry,) = await ask(client, "GENERATE", **{"max_tokens": 1, **fields})
        assert words in entry["error"]
        assert not model.steps


async def test_limits_of_buffers():
    """BUF-7, INF-7: their number and bytes are limited; a drop, and the end of a stream, make room again."""
    model = ScriptedModel(manual=True)
    async with conversation(model, config=ServerConfig(max_buffers=2, max_buffer_bytes=40)) as client:
        info = await ask(client, "MODEL_INFO", lmtp=1)
        limits = info["model_info"]["limits"]
        assert (limits["buffers"], limits["buffer_bytes"]) == (2, 40)
        await change(client, append=[1] * 6)
        await change(client, "b", append=[1] * 2)
        entry = await change(client, "c", append=[1])
        assert "2 buffers are the most" in entry["error"]
        (entry,) = await ask(client, "GENERATE", prompt=[1], into="c")
        assert "2 buffers are the most" in entry["error"]
        entry = await change(client, "b", append=[1] * 3)
        assert "cannot take 3 ids more: of the 10 that a connection's buffers may have together, 8" in entry["error"]
        await client.send('GENERATE {"prompt": [1], "stream_id": 1, "into": "a", "max_tokens": 2}')
        await until(lambda: model.running)
        assert "10 are taken" in (await change(client, "b", append=[1]))["error"]
        for _ in range(2):
            model.step()
        await client.stream(1)
        await change(client, drop=True)
        assert (await change(client, "b", append=[1] * 8))["buffer"]["length"] == 10


async def test_vocabulary(real):
    """BUF-7: an id outside the vocabulary is named at the append, where the model is loaded."""
    entry = await change(real, append=[5, 512], lmtp=1)
    assert "token id 512 in append is not in the vocabulary of" in entry["error"]
    assert entry["error_code"] == "unknown_token"


async def test_prompts_that_fit_nowhere(real):
    """BUF-7: a few names that stand for more ids than the context has are refused before the prompt is made."""
    await change(real, append=[5] * 400)
    (entry,) = await ask(real, "GENERATE", prompt=[{"buffer": "a"}] * 20_000, lmtp=1)
    assert "8000000 tokens > " in entry["error"]
    assert entry["error_code"] == "context_overflow"


async def test_prefill_of_a_buffer(real):
    """BUF-3, GEN-16: a buffer that was computed ahead is not computed again by the prompts that begin with it."""
    await change(real, append=list(range(260, 360)), lmtp=1)
    prompt = [{"buffer": "a"}]
    (entry,) = await ask(real, "GENERATE", prompt=prompt, prefill_only=True, max_tokens=0)
    assert entry["finish_reason"] == "prefill"
    entries = await ask(real, "GENERATE", prompt=[*prompt, 7], max_tokens=1)
    assert entries[-1]["usage"]["cached_tokens"] >= 64


async def test_extension(client):
    """BUF-8, EXT-6: `extensions` names it, so that a client need not send it to a server that does not know it."""
    assert "buffers" in EXTENSIONS
    entry = await ask(client, "BUFFER", name="a", append=[1], colour="red", model="scripted", lmtp=1)
    assert entry == {"stream_id": 1, "ignored": ["colour"]}
    (entry,) = await client.entries("MSG", 1)
    assert entry["buffer"]["length"] == 1
