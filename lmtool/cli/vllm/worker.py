"""The program of a vLLM worker: loads the model in vLLM's environment and speaks LMTP on stdin and stdout."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.cli.vllm.scratch import Scratch
from lmtool.engine.request_check import MAX_LOGPROBS
from lmtool.errors import LmtoolError, ModelLoadError
from lmtool.types import ModelInfo

if TYPE_CHECKING:
    from typing import TextIO

    from lmtool.ports import TokenModel


def main(words: list[str]) -> None:
    """Serve one client. words: the settings as JSON: `model`, `name`, and `options` for vLLM's engine."""
    settings = json.loads(words[0])
    wire = _wire()
    try:
        asyncio.run(_serve(settings, wire))
    except LmtoolError as problem:
        sys.stderr.write(f"error: {problem.message}\n")
        sys.exit(problem.exit_code)


def _wire() -> TextIO:
    """Stdout for the protocol alone: vLLM and its processes write to stderr."""
    wire = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return wire


async def _serve(settings: dict[str, Any], wire: TextIO) -> None:
    from lmtool.lmtp.config import ServerConfig
    from lmtool.lmtp.server import LmtpServer
    from lmtool.lmtp.stdio import open_stdio

    scratch, engine = Scratch(), None
    try:
        engine = _engine(settings, scratch)
        server = LmtpServer(_with_text(engine, settings, scratch))
        printed, sys.stdout = sys.stdout, wire
        try:
            reader, writer = await open_stdio(ServerConfig().max_frame_bytes)
        finally:
            sys.stdout = printed
        await server.run_stdio(reader, writer)
    finally:
        if engine is not None:
            engine.shutdown()
        scratch.close()


def _engine(settings: dict[str, Any], scratch: Scratch) -> Any:
    # vLLM's newer model runner has another kind of logits processors, still without a fixed form.
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    options = {
        "enable_prefix_caching": True,
        "max_logprobs": MAX_LOGPROBS,
        "disable_log_stats": True,
        **settings["options"],
    }
    try:
        if _can_hold(settings):
            options = {**scratch.options, **options}
        arguments = AsyncEngineArgs(model=settings["model"], skip_tokenizer_init=True, **options)
        return AsyncLLM.from_engine_args(arguments)
    except (TypeError, ValueError, RuntimeError, OSError) as problem:
        raise ModelLoadError(f"vLLM cannot load {settings['model']}: {problem}", "see its messages above") from problem


def _can_hold(settings: dict[str, Any]) -> bool:
    """VLLM takes no logits processors beside speculation."""
    return not settings["options"].get("speculative_config")


def _with_text(engine: Any, settings: dict[str, Any], scratch: Scratch) -> TokenModel:
    """The engine as a model that speaks text, or ids only where there is no tokenizer."""
    from lmtool.cli.vllm.guides import RemoteGuides
    from lmtool.cli.vllm.model import VllmModel
    from lmtool.text.text_model import TextModel
    from lmtool.text.tokenizer import load_tokenizer

    info, tokenizer = describe(engine.model_config, settings), None
    try:
        tokenizer = load_tokenizer(settings["model"])
    except LmtoolError as problem:
        sys.stderr.write(f"warning: served with token ids only: {problem.message}\n")
    scratch.describe(info, None if tokenizer is None else tokenizer.to_json())
    guides = RemoteGuides(engine, scratch.told) if _can_hold(settings) else None
    most = engine.model_config.max_logprobs
    model = VllmModel(engine, info, guides, info.vocab_size if most < 0 else most)  # vLLM's -1 is no limit
    return model if tokenizer is None else TextModel(model, tokenizer)


def describe(config: Any, settings: dict[str, Any]) -> ModelInfo:
    """What is served. config: vLLM's `ModelConfig`."""
    import vllm

    raw = config.hf_config.to_dict()
    told = {**raw, **_generation(Path(settings["model"]))}
    eos, bos = told.get("eos_token_id"), told.get("bos_token_id")
    architectures = raw.get("architectures") or [None]
    return ModelInfo(
        model=settings["name"],
        constructor=f"AsyncLLM({settings['name']!r})",
        backend="vllm",
        vocab_size=config.get_vocab_size(),
        context_length=config.max_model_len,
        eos_token_ids=tuple(token for token in (eos if isinstance(eos, list) else [eos]) if isinstance(token, int)),
        bos_token_id=bos if isinstance(bos, int) else None,
        architecture=architectures[0],
        dtype=str(config.dtype).removeprefix("torch."),
        versions={"vllm": vllm.__version__},
    )


def _generation(folder: Path) -> dict[str, Any]:
    file = folder / "generation_config.json"
    if not file.is_file():
        return {}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return {name: found[name] for name in ("eos_token_id", "bos_token_id") if found.get(name) is not None}


if __name__ == "__main__":
    main(sys.argv[1:])
