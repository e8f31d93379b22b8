"""All examples of the source, sent over gRPC by stubs of the public interface, to the embedded model."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from lmtool.protocol.evergreen.codec import pack_generate_config
from lmtool.protocol.evergreen.generate_config import GenerateConfig
from lmtool.protocol.evergreen.menu import menu
from lmtool.protocol.evergreen.messages import Chunk, ChunkMetadata, NodeFragment
from lmtool.protocol.evergreen.references import allowed_references
from lmtool.protocol.evergreen.server import EvergreenServer, Plugs
from tests.protocol.evergreen.harness import Caller, action, grpc_serving, grpc_session, leaf, parent

SHORT = (pack_generate_config(GenerateConfig(max_tokens=4)),)
END_OF_TURN = "application/x-protobuf; type=EndOfTurn"


@pytest.fixture
async def caller(tiny, tmp_path) -> AsyncIterator[Caller]:
    """A session with a server that reads files of one folder."""
    server = EvergreenServer(Plugs(menu(tiny, tiny), references=allowed_references([f"file:{tmp_path}"])))
    async with grpc_serving(server) as address, grpc_session(address) as session:
        yield session


def reference(node_id: str, uri: str, seq: int, mimetype: str, *, continued: bool) -> NodeFragment:
    """A piece that is elsewhere; the metadata is repeated, as in the source."""
    return NodeFragment(node_id, seq, continued, (), Chunk(ChunkMetadata(mimetype), uri))


def question(tmp_path, mimetype: str, node: str = "video_1"):
    """The first example: a question and a node of two files."""
    (tmp_path / "part1").write_text("Once upon a time ")
    (tmp_path / "part2").write_text("there was a little girl")
    return [
        parent("prompt_1", "question_1", node),
        leaf("question_1", "Write a summary of this video: "),
        reference(node, f"file://{tmp_path}/part1", 0, mimetype, continued=True),
        reference(node, f"file://{tmp_path}/part2", 1, mimetype, continued=False),
    ]


def ask(prompt: str, answer: str, *names: str):
    """GENERATE under the source's names for its parameters."""
    into, out = names or ("prompt", "response")
    return action("GENERATE", {into: prompt}, {out: answer}, configs=SHORT)


async def test_two_questions_about_one_prompt(caller, tmp_path):
    """An answer to a text in files; then a second prompt of the first one, its answer, and another question."""
    await caller.send(*question(tmp_path, "text/plain"), actions=[ask("prompt_1", "response_1")])
    assert await caller.value("response_1")
    await caller.send(
        parent("prompt_2", "prompt_1", "response_1", "question_2"),
        leaf("question_2", "Who's winning?"),
        actions=[ask("prompt_2", "response_2")],
    )
    assert await caller.value("response_2")
    await caller.call.done_writing()
    assert await caller.failure() == ("OK", "")


async def test_a_video_is_refused_by_its_type(caller, tmp_path):
    """The first example as it stands: the model reads no video."""
    await caller.send(*question(tmp_path, "video/mp4"), actions=[ask("prompt_1", "response_1")])
    status, text = await caller.failure()
    assert (status, "video/mp4" in text) == ("INVALID_ARGUMENT", True)


@pytest.mark.parametrize("streamed", [False, True], ids=["at once", "streamed"])
async def test_a_prompt_with_an_end_of_turn(caller, streamed):
    """`text` to `text` with a config, a text and an end of turn; the prompt's list of children at once or in two."""
    words = leaf("prompt_1_text", "Write a heroic novel about a half-eaten jam doughnut.")
    if streamed:
        first = parent("prompt_1", "prompt_1_text", continued=True)
        await caller.send(first, words, actions=[ask("prompt_1", "response_1", "text", "text")])
        await caller.send(parent("prompt_1", "prompt_1_eot", seq=1))
        await caller.send(leaf("prompt_1_eot", mimetype=END_OF_TURN))
    else:
        both = parent("prompt_1", "prompt_1_text", "prompt_1_eot")
        end = leaf("prompt_1_eot", mimetype=END_OF_TURN)
        await caller.send(both, words, end, actions=[ask("prompt_1", "response_1", "text", "text")])
    assert await caller.value("response_1")
