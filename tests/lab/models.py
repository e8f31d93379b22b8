"""Loading and unloading a large model beside the streams of another one: `python -m tests.lab models [OPTION...]`.

Makes a Llama model of random bfloat16 weights (1 GB unless `--gigabytes` says otherwise), serves it beside another one
(`--model`, the embedded one unless said otherwise) with the other options, and measures the gaps between the tokens of
16 greedy streams of that one: alone, and while the large one is loaded and unloaded `--turns` times on request. Prints
these, each load and unload by itself (the first load also imports what models of its kind need), whether ids or
logprobs of any stream changed, and what memory stays. The exit status is 0 where the 99th percentile of the gaps beside
loads and unloads is below `MOST` times the quiet one and no stream changed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lmtool.measure.bench.peers.maker_peer import save_tokenizer
from lmtool.protocol.lmtp.client import LmtpClient
from tests.lab.frames import STREAMS, Streams, memory, server, told

MOST = 2.0
"""By how much the 99th percentile of gaps may be longer while a model is loaded or unloaded."""
WARM_SECONDS = 3.0
LAYER = {"hidden_size": 1536, "intermediate_size": 4096, "num_attention_heads": 12, "num_key_value_heads": 4}
VOCABULARY = 32_000
BYTES = 2
"""Of a weight in bfloat16."""


@contextlib.contextmanager
def large_model(folder: str | None, gigabytes: float) -> Iterator[Path]:
    """A folder with the model, made where there is none yet; without a name it is removed at the end."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(folder or f"{temporary}/large")
        if not (place / "config.json").is_file():
            make(place, gigabytes)
        yield place


def make(place: Path, gigabytes: float) -> None:
    """Write a model of so many bytes of random weights, and a tokenizer with a word for each id."""
    import torch
    import transformers

    hidden, inner = LAYER["hidden_size"], LAYER["intermediate_size"]
    shared = LAYER["num_key_value_heads"] / LAYER["num_attention_heads"]
    layer = 2 * hidden * hidden * (1 + shared) + 3 * hidden * inner
    layers = max(1, round((gigabytes * 1e9 / BYTES - VOCABULARY * hidden) / layer))
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=layers,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **LAYER,
    )
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(place)
    save_tokenizer(VOCABULARY, str(place))


@dataclass(frozen=True, slots=True)
class Turn:
    """One load or unload."""

    what: str
    seconds: float
    gaps: list[float]
    """Of all streams meanwhile, sorted."""


async def turns(url: str, name: str, count: int, streams: Streams) -> list[Turn]:
    """Load and unload the model so many times."""
    found = []
    async with LmtpClient(url) as client:
        for _ in range(count):
            for what, order in (("load", client.load), ("unload", client.unload)):
                streams.take()
                began = time.perf_counter()
                await order(name)
                took = time.perf_counter() - began
                await asyncio.sleep(0.1)  # a gap that it has made ends behind it
                found.append(Turn(what, took, streams.take()))
    return found


def p99(gaps: list[float]) -> float:
    """Of sorted gaps."""
    return gaps[int(len(gaps) * 0.99)]


async def measure(options: argparse.Namespace, place: Path) -> bool:
    """Measure everything and print it; whether it is as it should be."""
    size = sum(file.stat().st_size for file in place.glob("*.safetensors"))
    sys.stdout.write(f"{place.name}: {size / 1e9:.2f} GB of weights\n")
    async with server([options.model, "--allow-model", str(place), *options.words]) as (url, process):
        async with LmtpClient(url) as client:
            own = (await client.models())[0].name
        streams = Streams(url, model=own)
        running = asyncio.create_task(streams.run())
        await asyncio.wait([running], timeout=WARM_SECONDS)
        streams.take()
        before = memory(process)["server"]
        await asyncio.wait([running], timeout=options.seconds)
        quiet = streams.take()
        sys.stdout.write(told("gaps, quiet", quiet))
        found = await turns(url, place.name, options.turns, streams)
        await asyncio.wait([running], timeout=1.0)
        if running.done():
            await running
        after = memory(process)["server"]
        running.cancel()
    for turn in (one for one in found if one.gaps):
        sys.stdout.write(told(f"{turn.what}, {turn.seconds:.2f} s", turn.gaps))
    beside = sorted(gap for turn in found for gap in turn.gaps)
    ratio = p99(beside) / p99(quiet)
    differ = sum(len(said) > 1 for said in streams.said.values())
    whole = sum(bool(said) for said in streams.said.values())
    sys.stdout.write(told("gaps, beside", beside))
    sys.stdout.write(f"p99 {ratio:.2f} times the quiet one, allowed below {MOST}; ")
    sys.stdout.write(f"{differ} of {whole} streams differ; memory {before:.0f} MB before, {after:.0f} after\n")
    return ratio < MOST and not differ and whole == STREAMS


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lmtool-tiny", help="whose streams run")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of the large model's weights")
    parser.add_argument("--folder", help="keep the large model here, and use it where it is there already")
    parser.add_argument("--turns", type=int, default=5, help="loads and unloads")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the streams alone")
    given, given.words = parser.parse_known_args()
    with large_model(given.folder, given.gigabytes) as made:
        good = asyncio.run(measure(given, made))
    sys.exit(not good)
