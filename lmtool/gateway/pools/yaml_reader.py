"""YAML with line numbers: values are read by name and kind, and every fault is collected with its line."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from lmtool.gateway.pools.references import ReferenceFailedError, SecretSource, expand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_SECONDS: Mapping[str, float] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_BUDGET = re.compile(r"(\d{1,9})/(ms|s|m|h)")
_BYTES: Mapping[str, int] = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
MAX_NODES = 100_000
"""Values of a file, those that aliases repeat counted again."""


@dataclass
class Faults:
    """What is wrong with a file, by line."""

    entries: list[tuple[int, str]] = field(default_factory=list)

    def add(self, node: yaml.Node, sentence: str) -> None:
        """Add a fault at a node."""
        self.entries.append((node.start_mark.line + 1, sentence))

    def sentences(self, name: str) -> list[str]:
        """`FILE:LINE: what is wrong`, in the order of lines."""
        return [f"{name}:{line}: {sentence}" for line, sentence in sorted(self.entries)]


def compose(text: str, faults: Faults) -> yaml.Node | None:
    """The nodes of a YAML text, merge keys resolved; None for an empty or malformed one."""
    loader = yaml.SafeLoader(text)
    try:
        root: yaml.Node | None = loader.get_single_node()
        if root is not None:
            _flatten(loader, root, 0)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        faults.entries.append(((mark.line + 1) if mark else 1, f"this is no YAML: {problem}"))
        return None
    finally:
        loader.dispose()
    return root


def _flatten(loader: yaml.SafeLoader, node: yaml.Node, count: int) -> int:
    """Resolve merge keys below a node. Raises `yaml.YAMLError` for too many nodes, as aliases of aliases make."""
    count += 1
    if count > MAX_NODES:
        raise yaml.YAMLError(f"it has more than {MAX_NODES} values")
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        for _, value in node.value:
            count = _flatten(loader, value, count)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            count = _flatten(loader, value, count)
    return count


def seconds_of(text: str) -> float | None:
    """Seconds of a duration such as `200ms`, `30s` or `1m30s`, or of a plain number; None for anything else."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def rate_of(text: str) -> tuple[int, float] | None:
    """Count and seconds of a rate such as `10/m`; None for anything else, zero included."""
    match = _BUDGET.fullmatch(text)
    return (int(match[1]), _SECONDS[match[2]]) if match is not None and int(match[1]) else None


class Section:
    """A mapping of the file. Read what is known, then `close` it: other keys are faults."""

    def __init__(self, node: yaml.Node, path: str, faults: Faults) -> None:
        """path: its place in the file, for sentences; empty at the top."""
        self.node = node
        self.path = path
        self.faults = faults
        self._values: dict[str, yaml.Node] = {}
        self._known: set[str] = set()
        if not isinstance(node, yaml.MappingNode):
            faults.add(node, f"{path or 'the file'} is no mapping of keys to values")
            return
        for key, value in node.value:
            name = str(key.value)
            if name in self._values:
                faults.add(key, f"{self.place(name)} stands here twice")
            self._values[name] = value

    def place(self, key: str) -> str:
        """The path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def __contains__(self, key: str) -> bool:
        return key in self._values

    @property
    def keys(self) -> Sequence[str]:
        """All that stand here."""
        return list(self._values)

    def fault(self, sentence: str, key: str | None = None) -> None:
        """Add a fault at this section, or at one of its keys."""
        self.faults.add(self._values.get(key or "", self.node), sentence)

    def value_node(self, key: str) -> yaml.Node | None:
        """The node of a key, None where there is none or it is null; the key is known from now on."""
        self._known.add(key)
        node = self._values.get(key)
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
            return None
        return node

    def lacks(self, key: str) -> bool:
        """True if there is no value: one that cannot be read is a fault of its own, told already."""
        return self.value_node(key) is None

    def text(self, key: str) -> str | None:
        """A scalar's text, references expanded; None where there is none."""
        template = self.template(key)
        try:
            return None if template is None else expand(template)
        except ReferenceFailedError as error:
            self.fault(f"{self.place(key)}: {error}", key)
            return None

    def template(self, key: str) -> str | None:
        """A scalar's text as it was written."""
        node = self.value_node(key)
        if node is not None and not isinstance(node, yaml.ScalarNode):
            self.fault(f"{self.place(key)} is no text", key)
            return None
        return None if node is None else str(node.value)

    def secret(self, key: str) -> SecretSource | None:
        """A secret; None where there is none."""
        template = self.template(key)
        try:
            return None if template is None else SecretSource.read(template)
        except ReferenceFailedError as error:
            self.fault(f"{self.place(key)}: {error}", key)
            return None

    def parsed(self, key: str, parse: Callable[[str], Any], expected: str, default: Any) -> Any:  # noqa: ANN401 # of `parse`
        """What `parse` makes of a text, a fault where that is None or raises `ValueError`."""
        text = self.text(key)
        if text is None:
            return default
        try:
            value = parse(text)
        except ValueError:
            value = None
        if value is None:
            self.fault(f"{self.place(key)} is {text!r:.100}; expected {expected}", key)
            return default
        return value

    def number(self, key: str, default: float | None, low: float = 0.0, high: float = 1e9) -> Any:  # noqa: ANN401 # as the default
        """A number within a range."""

        def parse(text: str) -> float | None:
            value = float(text)
            return value if low <= value <= high else None

        return self.parsed(key, parse, f"a number from {low:g} to {high:g}", default)

    def count(self, key: str, default: int | None, low: int = 0, high: int = 10**9) -> Any:  # noqa: ANN401 # as the default
        """A whole number within a range."""

        def parse(text: str) -> int | None:
            value = int(text)
            return value if low <= value <= high else None

        return self.parsed(key, parse, f"a whole number from {low} to {high}", default)

    def seconds(self, key: str, default: float | None) -> Any:  # noqa: ANN401 # as the default
        """A duration in seconds."""
        return self.parsed(key, seconds_of, "a duration such as 200ms, 30s or 5m", default)

    def bytes(self, key: str, default: int) -> int:
        """A size in bytes."""

        def parse(text: str) -> int | None:
            match = re.fullmatch(r"(\d{1,12}) ?([a-z]*)", text.lower())
            return None if match is None or match[2] not in _BYTES else int(match[1]) * _BYTES[match[2]]

        return int(self.parsed(key, parse, "a size such as 4MiB", default))

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        return bool(self.parsed(key, {"true": True, "false": False}.get, "true or false", default))

    def choice(self, key: str, choices: Iterable[str], default: str) -> str:
        """One of these names."""
        names = list(choices)
        text = self.text(key)
        if text is None or text in names:
            return text or default
        self.fault(f"{self.place(key)} is {text!r:.100}; expected {', '.join(names)}{nearest(text, names)}", key)
        return default

    def section(self, key: str) -> Section | None:
        """A mapping below this one; None where there is none."""
        node = self.value_node(key)
        return None if node is None else Section(node, self.place(key), self.faults)

    def sections(self, key: str) -> list[Section] | None:
        """A list of mappings; None where there is none."""
        node = self.value_node(key)
        if node is None:
            return None
        if not isinstance(node, yaml.SequenceNode):
            self.fault(f"{self.place(key)} is no list", key)
            return None
        return [Section(one, f"{self.place(key)}[{at}]", self.faults) for at, one in enumerate(node.value)]

    def texts(self, key: str) -> list[str]:
        """A list of texts; empty where there is none."""
        value = self.value(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self.fault(f"{self.place(key)} is no list of texts", key)
            return []
        return value

    def value(self, key: str) -> Any:  # noqa: ANN401 # any JSON
        """Any value, references in its texts expanded; None where there is none."""
        node = self.value_node(key)
        return None if node is None else self._plain(node, self.place(key))

    def _plain(self, node: yaml.Node, place: str) -> Any:  # noqa: ANN401 # any JSON
        if isinstance(node, yaml.MappingNode):
            return {str(key.value): self._plain(one, f"{place}.{key.value}") for key, one in node.value}
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(one, f"{place}[{at}]") for at, one in enumerate(node.value)]
        text = str(node.value)
        try:
            if "$" in text:
                return expand(text)
            return yaml.SafeLoader("").construct_object(node)
        except ReferenceFailedError as error:
            self.faults.add(node, f"{place}: {error}")
        except (ValueError, yaml.YAMLError):
            self.faults.add(node, f"{place} is no value that can be read")
        return None

    def ignore(self, *keys: str) -> None:
        """Accept these keys, whatever they say."""
        self._known.update(keys)

    def close(self) -> None:
        """Every key that was not read is a fault, with the nearest known one."""
        for key, node in self._values.items():
            if key not in self._known:
                self.faults.add(node, f"{self.place(key)} is not known here{nearest(key, self._known)}")


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing where no name is near."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""
