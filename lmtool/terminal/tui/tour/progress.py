"""Which step of the tour comes next, kept in a file of the user's data folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.core.errors import FileError
from lmtool.settings.data_folder import data_folder
from lmtool.terminal.tui.tour.steps import STEPS

if TYPE_CHECKING:
    from pathlib import Path

    from lmtool.terminal.tui.tour.steps import Step

_LONGEST = 100
"""Bytes of the file that are read."""


def tour_file() -> Path:
    """Where the place in the tour is kept."""
    return data_folder() / "tour"


class Progress:
    """The place in the tour. Steps before `target` are done by the tour itself: they were done or skipped."""

    def __init__(self, file: Path, *, restart: bool = False) -> None:
        """Go on where the file says; from the beginning without one, or with `restart`. Raises `FileError`."""
        self._file = file
        self.index = 0
        self.target = 0 if restart else _kept(file)
        self.is_return = self.target > 0
        """Whether the tour was left before, and is on its way to that place."""
        if restart:
            self._keep()

    @property
    def step(self) -> Step | None:
        """The step to do; None at the end."""
        return STEPS[self.index] if self.index < len(STEPS) else None

    @property
    def is_performing(self) -> bool:
        """Whether the tour does this step itself."""
        return self.index < self.target

    def skip(self) -> None:
        """Have this step done by the tour; one that it is doing already is left out."""
        if self.is_performing:
            self.advance()
        else:
            self.target = self.index + 1

    def advance(self) -> None:
        """To the next step. Raises `FileError` where the place cannot be kept; it has changed all the same."""
        self.index += 1
        if self.index >= self.target:
            self.is_return = False
            self.target = self.index
            self._keep()

    def _keep(self) -> None:
        step = self.step
        try:
            if step is None or not self.index:
                self._file.unlink(missing_ok=True)
                return
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file.write_text(f"{step.kept_as or step.id}\n", encoding="utf-8")
        except OSError as error:
            raise FileError(f"where the tour is cannot be kept in {self._file}: {error.strerror}") from None


def _kept(file: Path) -> int:
    """The place in a file; the beginning for none, or for a step that there is not (any more)."""
    try:
        with file.open("rb") as opened:
            name = opened.read(_LONGEST).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror}", "remove it, or:  lmtool tour --restart") from None
    return next((place for place, step in enumerate(STEPS) if step.id == name), 0)
