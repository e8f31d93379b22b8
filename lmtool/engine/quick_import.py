"""How transformers is imported in less time: it looks through its 3,000 model files twice, and once is enough."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Table: TypeAlias = "dict[frozenset[str], dict[str, set[str]]]"
"""Names of packages that are needed, to module, to the names it defines."""


def import_transformers() -> None:
    """Import transformers and its table of models; a tenth of a server's start-up faster than importing them plainly.

    `import transformers` builds the table of all model files under the name `models`, and `import transformers.models`
    builds it once more without it, because a cache between the two is too small (seen in 5.17 to 5.23). The second
    table is made from the first here. A transformers that works differently inside is imported plainly.
    """
    if "transformers.models" in sys.modules:
        return
    import_utils = importlib.import_module("transformers.utils.import_utils")
    build = getattr(import_utils, "define_import_structure", None)
    if build is None or not hasattr(build, "cache_info"):
        return  # without its memory, asking it for the first table would look through the files again
    setattr(import_utils, "define_import_structure", functools.partial(_from_first, build))  # noqa: B010 # see above
    try:
        importlib.import_module("transformers.models")
    finally:
        setattr(import_utils, "define_import_structure", build)  # noqa: B010 # as it was


def _from_first(build: Callable[..., Table], path: str, prefix: str | None = None) -> Table:
    folder = Path(path).parent
    if prefix is not None or Path(path).name != "__init__.py" or folder.name != "models":
        return build(path, prefix)
    return without_prefix(build(folder, prefix="models"))


def without_prefix(table: Table) -> Table:
    """The table of the modules below `models`, named from there; other modules are left out."""
    mine = {
        backends: {name.removeprefix("models."): found for name, found in modules.items() if name.startswith("models.")}
        for backends, modules in table.items()
    }
    return {backends: modules for backends, modules in mine.items() if modules}
