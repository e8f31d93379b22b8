"""The C kernels as other processors have them."""

from __future__ import annotations

import os
import platform

import pytest

from lmtool.inference.engine.cpu.library import Kernels, compile_kernels, find_compiler

BUILDS = {"this processor": "", "without AVX512-BF16": "-mno-avx512bf16", "without AVX512": "-mno-avx512f"}
"""Name to what the compiler is told in addition."""


@pytest.fixture(scope="session", params=BUILDS)
def each_build(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, own_kernels: Kernels
) -> Kernels:
    """The kernels for this processor, then for lesser ones of its kind; skips those that would be the same."""
    told = BUILDS[request.param]
    if not told:
        return own_kernels
    if platform.machine() not in {"x86_64", "AMD64"}:
        pytest.skip("another kind of processor")
    folder = tmp_path_factory.mktemp("lesser")
    compiler = folder / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {find_compiler()} "$@" {told}\n', encoding="utf-8")
    compiler.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", os.fspath(compiler))
        lesser = Kernels(compile_kernels(folder))
    if lesser.instructions == own_kernels.instructions:
        pytest.skip(f"this processor has nothing beyond {own_kernels.instructions}")
    lesser.use_threads(1)
    return lesser
