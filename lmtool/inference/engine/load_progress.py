"""Turns the progress bars of transformers and its hub client into `LoadProgress`, and keeps them off the terminal."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from typing import TYPE_CHECKING, Any

from huggingface_hub.utils.tqdm import tqdm as HubBar  # noqa: N812  # a class, whatever its name
from transformers.utils import logging as transformers_logging

from lmtool.core.types import LoadProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Progress:
    """Progress of one load: first bytes downloaded, if any, then bytes read into memory."""

    def __init__(self, model: str, total: int, report: Callable[[LoadProgress], None]) -> None:
        """total: bytes of the weight files; 0 for a model of the hub, whose size is only known while it comes."""
        self._model = model
        self._total = total
        self._report = report
        self._downloaded = 0
        self._to_download = 0

    def start(self) -> None:
        """Report that nothing is read yet."""
        self._report(LoadProgress(self._model, "loading", 0, self._total, f"reading {self._model}"))

    def expect(self, size: int) -> None:
        """Count one more file of `size` bytes to download."""
        self._to_download += size

    def download(self, size: int) -> None:
        """Count `size` more downloaded bytes."""
        self._downloaded += size
        message = f"downloading {self._model}"
        self._report(LoadProgress(self._model, "loading", self._downloaded, self._to_download, message))

    def read(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the weights as transformers takes them, and report after each percent."""
        every, total, reported = list(items), self._total or self._to_download, 0
        for index, item in enumerate(every, start=1):
            yield item
            percent = 100 * index // len(every)
            if percent > reported:
                reported = percent
                done = total * index // len(every)
                self._report(LoadProgress(self._model, "loading", done, total, f"reading {self._model}"))

    def bar(self) -> type[HubBar]:
        """A class for the hub client's download bars: it draws nothing and reports here."""
        progress = self

        class Bar(HubBar):
            """One file's bar."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # tqdm's own many
                super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]  # tqdm has no types
                if kwargs.get("unit") == "B":
                    progress.expect(int(kwargs.get("total") or 0))
                    progress.download(int(kwargs.get("initial") or 0))

            def update(self, n: float | None = 1) -> None:
                """Take note of n more bytes."""
                progress.download(int(n or 0))

        return Bar

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Follow transformers' bar over the weights of a checkpoint for the length of a load."""

        def bar(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
            if args and kwargs.get("desc") == "Loading weights":
                return self.read(args[0])
            return factory(*args, **{**kwargs, "disable": True})

        previous = transformers_logging.set_tqdm_hook(bar)
        try:
            yield
        finally:
            transformers_logging.set_tqdm_hook(previous)


class _Quiet:
    """Transformers' reports and Python's warnings, off while at least one load runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loads = 0
        self._restore = contextlib.ExitStack()

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """Keep transformers' own reports off the terminal: what matters is raised, or reported as progress.

        Both are matters of the whole process, so that of several loads the last one that ends restores them.
        """
        with self._lock:
            self._loads += 1
            if self._loads == 1:
                self._restore.callback(transformers_logging.set_verbosity, transformers_logging.get_verbosity())
                transformers_logging.set_verbosity(logging.ERROR)
                self._restore.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
        try:
            yield
        finally:
            with self._lock:
                self._loads -= 1
                if not self._loads:
                    self._restore.close()


quiet = _Quiet().load
