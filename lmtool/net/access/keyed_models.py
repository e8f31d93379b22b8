"""The models of a server as each key may see and use them: a model in front of others, for all protocols at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from lmtool.core.errors import AccessDeniedError, LmtoolError, RequestError, UnknownModelError
from lmtool.core.interfaces import ModelControl, current_limits, tokenizer_of
from lmtool.core.prompt_limits import check_allowed_length, check_allowed_text, limits_of
from lmtool.core.streams import failure, refuse
from lmtool.core.types import GenerateRequest, LoadProgress
from lmtool.net.access.caller import caller_name, caller_turns, current_caller, is_admin, withdrawn

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from lmtool.core.interfaces import Catalogue, ProgressSource, Sink, StreamHandle, Tokenizer, TokenModel, Unsubscribe
    from lmtool.core.model_entry import ModelEntry
    from lmtool.core.prompt_limits import LimitsByModel
    from lmtool.core.types import ModelInfo, ScoreRequest, StreamId, TokenOutput
    from lmtool.net.access.caller import Caller, StreamUse
    from lmtool.net.access.keys import Key

    class Models(TokenModel, Catalogue, ProgressSource, Protocol):
        """What a server serves."""


class KeyedModels:
    """Passes on what the key of the current request allows, see `current_caller`; all of it where there is none.

    What a key may not use is not there for it: neither listed nor found by its name.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._sinks: dict[Sink, _MeteredSink] = {}

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """See `interfaces.TokenModel.submit`."""
        caller = current_caller.get()
        if caller is None:
            return self._models.submit(request, sink)
        try:
            request = self._permitted(caller, request)
            tokens = len(request.prompt) if isinstance(request.prompt, tuple) else 0
            prefill_only = isinstance(request, GenerateRequest) and request.prefill_only
            use = caller.begin_stream(tokens, prefill_only=prefill_only)
        except LmtoolError as error:
            return refuse(request.stream_id, sink, error)
        metered = self._sinks.get(sink)
        if metered is None:
            metered = self._sinks[sink] = _MeteredSink(sink, self._sinks, caller)
        metered.uses[request.stream_id] = use
        handle = self._models.submit(request, metered)
        if request.stream_id in metered.uses:
            metered.handles[request.stream_id] = handle
        return handle

    def _permitted(self, caller: Caller, request: GenerateRequest | ScoreRequest) -> GenerateRequest | ScoreRequest:
        """The request as it is passed on. Raises `LmtoolError` for one that its key does not allow."""
        key = caller.key
        request = replace(
            request,
            model=self._name(key, request.model),
            max_prompt_tokens=key.limits.prompt_tokens,
            cache_salt=caller.salted(request.cache_salt),
        )
        if isinstance(request, GenerateRequest):
            request = replace(request, priority=_priority(key, request.priority))
        check_allowed_length(request)
        check_allowed_text(request, limits_of(request.model, current_limits(self._models)))
        return request

    async def info(self, model: str | None = None) -> ModelInfo:
        """See `interfaces.TokenModel.info`; with the limits of the key."""
        caller = current_caller.get()
        if caller is None:
            return await self._models.info(model)
        key = caller.key
        info = await self._models.info(self._name(key, model))
        limits = dict(key.limits.known)
        if key.priority is not None:
            limits["priority"] = key.priority
        info = replace(info, key_limits=limits)
        return info if key.admin else replace(info, running=None, waiting=None)

    def models(self) -> Sequence[ModelEntry]:
        """See `interfaces.Catalogue.models`."""
        caller = current_caller.get()
        return self._models.models() if caller is None else self._listed(caller.key)

    def _listed(self, key: Key) -> list[ModelEntry]:
        return [_visible(key, entry) for entry in self._models.models() if key.allows(entry)]

    def entry(self, name: str | None) -> ModelEntry:
        """See `interfaces.Catalogue.entry`."""
        caller = current_caller.get()
        if caller is None:
            return self._models.entry(name)
        return _visible(caller.key, self._models.entry(self._name(caller.key, name)))

    def _name(self, key: Key, name: str | None) -> str | None:
        """The name under which a request is passed on.

        Raises `UnknownModelError` for what the key may not use: without `admin` also a model that no catalogue lists,
        which `serve auto`, here or on a worker, would load. Before a worker has sent its list, nothing is known of it.
        """
        if name is not None and not key.admin and self._models.models():
            self._models.entry(name)
        if key.models is None:
            return name
        listed = self._listed(key)
        if name is None and len(listed) == 1:
            return listed[0].name
        if name is not None and (key.allows_name(name) or any(name in entry.aliases for entry in listed)):
            return name
        problem = "the request names no model" if name is None else f"model {name!r:.200} is not served here"
        names = ", ".join(entry.name for entry in listed)
        raise UnknownModelError(problem, *([f"served here: {names}"] if names else []))

    @property
    def limits(self) -> LimitsByModel:
        """See `interfaces.Limited`."""
        return current_limits(self._models)

    def tokenizer(self, model: str | None = None) -> Tokenizer | None:
        """See `interfaces.Tokenized`."""
        caller = current_caller.get()
        return tokenizer_of(self._models, model if caller is None else self._name(caller.key, model))

    def subscribe(self, model: str | None, listener: Callable[[LoadProgress], None]) -> Unsubscribe:
        """See `interfaces.ProgressSource`."""
        caller = current_caller.get()
        try:
            return self._models.subscribe(model if caller is None else self._name(caller.key, model), listener)
        except LmtoolError as error:
            listener(LoadProgress(model or "", "failed", message=error.message))
            return lambda: None  # nothing was subscribed


class ControlledModels(KeyedModels):
    """`KeyedModels` that keys with `admin` may load and unload; `AccessDeniedError` for others. See `ModelControl`."""

    def __init__(self, models: Models, control: ModelControl) -> None:
        super().__init__(models)
        self._control = control

    async def load(self, name: str) -> None:
        """See `interfaces.ModelControl.load`."""
        await self._control.load(self._own(name, "load models"))

    async def unload(self, name: str) -> None:
        """See `interfaces.ModelControl.unload`."""
        await self._control.unload(self._own(name, "unload models"))

    def _own(self, name: str, action: str) -> str:
        if not is_admin():
            hint = "the operator marks a key that may in the file of keys:  admin = true"
            raise AccessDeniedError(f"the key {caller_name()} may not {action}", hint)
        caller = current_caller.get()
        return name if caller is None else self._name(caller.key, name) or name


def keyed(models: Models) -> KeyedModels:
    """These models behind the keys of a file."""
    return ControlledModels(models, models) if isinstance(models, ModelControl) else KeyedModels(models)


class _MeteredSink:
    """One sink's streams, as their keys account for them; known as long as one of them runs."""

    __slots__ = ("_all", "_forget", "_sink", "client", "handles", "uses")

    def __init__(self, sink: Sink, everyone: dict[Sink, _MeteredSink], caller: Caller) -> None:
        self.client: Hashable = caller_turns()
        """Client that requests are scheduled for, see `interfaces.client_of`."""
        self._sink = sink
        self._all = everyone
        self._forget = caller.on_withdrawal(self._end)
        self.uses: dict[StreamId, StreamUse] = {}
        self.handles: dict[StreamId, StreamHandle] = {}

    def _end(self) -> None:
        """End all streams with an error: their key is no longer valid."""
        handles = list(self.handles.values())
        self([failure(stream_id, withdrawn()) for stream_id in list(self.uses)])
        for handle in handles:
            handle.cancel()

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        known = [output for output in outputs if output.stream_id in self.uses]
        for output in known:
            self.uses[output.stream_id].note(output)
            if output.last:
                del self.uses[output.stream_id]
                self.handles.pop(output.stream_id, None)
        if not self.uses:
            self._forget()
            self._all.pop(self._sink, None)
        if known:
            self._sink(known)


def _priority(key: Key, priority: int) -> int:
    """The priority that a request gets; 0, which is that of a request without one, is raised to the key's lowest."""
    if key.priority is None or priority >= key.priority:
        return priority
    if priority == 0:
        return key.priority
    raise RequestError(f"priority is {priority}; this key may ask for {key.priority} or more", "or leave it out")


def _visible(key: Key, entry: ModelEntry) -> ModelEntry:
    """The entry as the key may see it: when others last used the model is for `admin` alone."""
    return entry if key.admin else replace(entry, idle_seconds=None)
