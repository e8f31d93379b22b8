"""Importing transformers in less time changes nothing about what was imported."""

from __future__ import annotations

import subprocess
import sys

from lmtool.engine.quick_import import without_prefix

CODE = """
import os, sys
from lmtool.engine.quick_import import import_transformers
listed = []
sys.addaudithook(lambda event, args: listed.append(args[0]) if event == "os.scandir" else None)
import_transformers()
llama = [path for path in listed if str(path).endswith("models/llama")]
from transformers.utils import import_utils
build = import_utils.define_import_structure
assert hasattr(build, "cache_info"), "put back"
table = sys.modules["transformers.models"]
real = build(table.__file__)
names = {name for modules in real.values() for found in modules.values() for name in found}
assert names <= set(dir(table)), "every name of every model file can be had"
import_transformers()
print(len(llama), "torch" in sys.modules)
"""


def test_the_model_files_are_looked_through_once_and_nothing_is_lost() -> None:
    """Each model's folder is listed once, and every name that transformers finds itself is there."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "False"]


def test_the_table_of_models_is_the_whole_table_below_models() -> None:
    """Modules outside `models` are left out, and so are requirements that nothing is left of."""
    plain, torch = frozenset[str](), frozenset({"torch"})
    table = {
        plain: {"models.gpt2.configuration_gpt2": {"GPT2Config"}, "generation": {"GenerationConfig"}},
        torch: {"modeling_utils": {"PreTrainedModel"}},
    }
    assert without_prefix(table) == {plain: {"gpt2.configuration_gpt2": {"GPT2Config"}}}
