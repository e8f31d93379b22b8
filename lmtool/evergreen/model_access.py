"""The served models as actions use them: found by an action's target, their streams as lists of outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.errors import kind_of
from lmtool.evergreen.status import invalid
from lmtool.interfaces import tokenizer_of
from lmtool.streams import Inbox

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lmtool.interfaces import Catalogue, Tokenizer, TokenModel
    from lmtool.types import GenerateRequest, ModelInfo, ScoreRequest, TokenOutput


@dataclass(frozen=True, slots=True)
class Target:
    """The model that an action is for, in memory."""

    model: TokenModel
    name: str | None
    """For requests; None for the only model."""
    info: ModelInfo

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer. Raises `Abort` where there is none in this process."""
        tokenizer = tokenizer_of(self.model, self.name)
        if tokenizer is None:
            raise invalid(f"{self.info.model} has no tokenizer here: it takes and gives token ids only")
        return tokenizer

    async def outputs(self, request: GenerateRequest | ScoreRequest) -> AsyncGenerator[list[TokenOutput], None]:
        """A stream's outputs, those that wait together. Raises the error that ends it; leaving early cancels it."""
        inbox, ended = Inbox(), False
        inbox.submit(self.model, request)
        try:
            while not ended:
                outputs = await inbox.take()
                last = outputs[-1]
                ended = last.last
                if last.error is None:
                    yield outputs
                    continue
                if len(outputs) > 1:
                    yield outputs[:-1]
                raise kind_of(last.error_code)(last.error)
        finally:
            if not ended:
                inbox.cancel()


class ServedModels:
    """Finds the model of an action."""

    def __init__(self, model: TokenModel, catalogue: Catalogue) -> None:
        self._model = model
        self._catalogue = catalogue

    async def target(self, name: str) -> Target:
        """The model served under a name, once it is loaded; of several, an empty name means the first.

        Raises `UnknownModelError`, or the load's error.
        """
        chosen = name or self._default()
        return Target(self._model, chosen, await self._model.info(chosen))

    def _default(self) -> str | None:
        entries = self._catalogue.models()
        return entries[0].name if len(entries) > 1 else None
