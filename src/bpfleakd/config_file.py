"""The configuration file: strict YAML, with a default for everything (config.py has the keys).

Strict means that whatever is not understood is an error with its path, line and dotted key: a limit
that was misspelt and silently ignored would be noticed when it is needed.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bpfleakd.config import Config, contradictions
from bpfleakd.errors import ConfigError
from bpfleakd.printable import printable, shortened

DEFAULT_CONFIG_PATH = Path("/etc/bpfleakd/config.yaml")


def load_config(path: Path | None = None, *, default_path: Path = DEFAULT_CONFIG_PATH) -> Config:
    """Read the configuration file, or `default_path` if none is named (which may be absent).

    Raises ConfigError for a file that cannot be read or is not right in every key.
    """
    named = path or default_path
    try:
        content = named.read_bytes()
    except FileNotFoundError as error:
        if path is None:
            return Config()
        raise ConfigError(f"{named}: no such file", "name an existing file, or omit --config") from error
    except OSError as error:
        raise ConfigError(f"{named}: cannot be read: {error.strerror}") from error
    return _Document(named, content).config()


class _Loader(yaml.SafeLoader):
    """SafeLoader, except that a value it cannot make is an error with a position too.

    Of the words for truth only `true` and `false` are (as in YAML 1.2): `mode: off` is a mode.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 (as its base class declares it)
        first: [(tag, pattern) for tag, pattern in resolvers if first in "tTfF" or not tag.endswith(":bool")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            problem = f"not a value of type {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


class _Document:
    """One file: its text, its tree with the positions, and the way from a key to its line."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        self._content = content

    def config(self) -> Config:
        try:
            loader = _Loader(self._content.decode())
            root = loader.get_single_node()
            if root is None or root.tag == "tag:yaml.org,2002:null":
                return Config()
            self._check_keys(root, "", set())
            values = loader.construct_document(root)
        except UnicodeDecodeError as error:
            line = self._content[: error.start].count(b"\n") + 1
            raise self._error(line, f"byte 0x{self._content[error.start]:02x} is not UTF-8") from error
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            words = ", ".join(part for part in (error.context, error.problem) if part)
            assert mark is not None
            raise self._error(mark.line + 1, f"not YAML: {words}") from error
        except yaml.reader.ReaderError as error:
            line = self._content.decode()[: error.position].count("\n") + 1
            raise self._error(line, f"character U+{error.character:04X} is not allowed") from error
        except RecursionError as error:
            raise self._error(1, "nested too deeply") from error
        try:
            config = msgspec.convert(values, Config, dec_hook=_path_from_text)
        except msgspec.ValidationError as error:
            raise self._explained(root, str(error)) from error
        for keys, words in contradictions(config):
            given = (_node_at(root, key.split(".")) for key in keys)
            line = _line(next(filter(None, given)))
            raise self._error(line, f"{_dotted(keys[0].split('.'))}: {words}")
        return config

    def _check_keys(self, node: yaml.Node, dotted: str, seen: set[int]) -> None:
        """Raise for keys that are not text or occur twice; with YAML itself the last one wins."""
        if id(node) in seen:  # an alias: the node it stands for was checked
            return
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self._check_keys(item, dotted, seen)
        if not isinstance(node, yaml.MappingNode):
            return
        first_lines: dict[str, int] = {}
        for key, value in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise self._error(_line(key), f"key {_source(key)} is not text")
            name = f"{dotted}.{key.value}" if dotted else key.value
            if key.value in first_lines:
                where = f"first on line {first_lines[key.value]}"
                raise self._error(_line(key), f"{name}: given twice, {where}", "remove one of the two")
            first_lines[key.value] = _line(key)
            self._check_keys(value, name, seen)

    def _explained(self, root: yaml.Node, validation: str) -> ConfigError:
        """Turn msgspec's "reason - at `$.metrics.port`" into an error with a line."""
        reason, _, at = validation.partition(" - at `$")
        steps = re.findall(r"\w+", at)
        unknown = re.fullmatch(r"Object contains unknown field `(.*)`", reason, re.DOTALL)
        if unknown:
            section = _node_at(root, steps) or root
            key = next(key for key, _ in section.value if key.value == unknown[1])
            dotted = _dotted([*steps, key.value])
            return self._error(_line(key), f"{dotted}: unknown key", _meant(steps, key.value))
        node = _node_at(root, steps) or root
        dotted = _dotted(steps) or "the whole file"
        missing = re.fullmatch(r"Object missing required field `(.*)`", reason)
        if missing:
            known = ", ".join(_known_keys()[_section(steps)])
            return self._error(
                _line(node), f"{dotted}: the key {missing[1]} is missing", f"known here: {known}"
            )
        return self._error(_line(node), f"{dotted}: {_in_words(reason, steps)}, got {_source(node)}")

    def _error(self, line: int, words: str, hint: str = "") -> ConfigError:
        return ConfigError(f"{self._path}:{line}: {printable(words)}", printable(hint))


def _path_from_text(kind: type, value: Any) -> Any:
    if kind is not Path or not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise ValueError("Expected an absolute path")
    return Path(value)


def _node_at(node: yaml.Node | None, steps: list[str]) -> yaml.Node | None:
    """Return the node of a key path; None if the file leaves it to the default."""
    for step in steps:
        if isinstance(node, yaml.SequenceNode):
            node = node.value[int(step)]
        elif isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == step), None)
    return node


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _source(node: yaml.Node) -> str:
    """What stands in the file, in a few characters."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if not isinstance(node, yaml.ScalarNode) or not node.value:
        return "nothing"
    return shortened(repr(node.value) if node.style else node.value, 60)


_TYPE_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}


def _in_words(reason: str, steps: list[str]) -> str:
    if reason.startswith("Invalid enum value"):
        return f"expected one of {', '.join(_type_at(steps).cls)}"
    wanted = reason.partition(", got ")[0].replace("Expected", "expected")
    return re.sub(r"`(\w+)`", lambda match: _TYPE_WORDS.get(match[1], match[1]), wanted)


def _type_at(steps: list[str]) -> Any:
    """Return the type that a key path stands for, as msgspec.inspect describes it."""
    kind: Any = msgspec.inspect.type_info(Config)
    for step in steps:
        if isinstance(kind, msgspec.inspect.StructType):
            kind = next(_bare(field.type) for field in kind.fields if field.encode_name == step)
        else:
            kind = kind.item_type
    return kind


def _bare(kind: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """A type without the metadata of config.py for the field."""
    return kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind


def _dotted(steps: list[str]) -> str:
    return re.sub(r"\.(\d+)", r"[\1]", ".".join(steps))


def _section(steps: list[str]) -> str:
    """Return the name of a section: all items of a list have the same."""
    return ".".join(step for step in steps if not step.isdigit())


def _known_keys() -> dict[str, list[str]]:
    """Return the keys of each section; the section "" is the top of the file."""
    keys: dict[str, list[str]] = {}
    pending: list[tuple[str, Any]] = [("", msgspec.inspect.type_info(Config))]
    while pending:
        name, kind = pending.pop(0)
        if isinstance(kind, msgspec.inspect.StructType):
            keys[name] = [field.encode_name for field in kind.fields]
            pending += [
                (f"{name}.{field.encode_name}".strip("."), _bare(field.type)) for field in kind.fields
            ]
        elif isinstance(kind, msgspec.inspect.VarTupleType):
            pending.append((name, kind.item_type))
    return keys


def _meant(steps: list[str], key: str) -> str:
    """Return a hint for an unknown key: where the same key belongs, else a similar one here, else the list.

    A key of the top that stands in a section, or of a section that stands at the top, is probably misplaced.
    """
    known = _known_keys()
    section = _section(steps)
    homes = [name for name, keys in known.items() if key in keys and "" in (name, section)]
    if len(homes) == 1:
        return f"did you mean {'.'.join(filter(None, (homes[0], key)))}?"
    if similar := difflib.get_close_matches(key, known[section], n=1):
        return f"did you mean {'.'.join(filter(None, (section, similar[0])))}?"
    return f"known here: {', '.join(known[section])}"
