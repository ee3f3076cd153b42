"""The configuration: a strict YAML file, with a default for everything.

Strict means that whatever is not understood is an error with its path, line and dotted key: a limit
that was misspelt and silently ignored would be noticed when it is needed. deploy/config.example.yaml
shows every key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import yaml

from bpfleakd.analysis.sampling_rate import MAX_SHIFT, MIN_SHIFT
from bpfleakd.api import DEFAULT_SOCKET_PATH
from bpfleakd.errors import ConfigError
from bpfleakd.model.metrics import MetricLabel
from bpfleakd.model.process import TracingMode
from bpfleakd.printable import printable, shortened
from bpfleakd.target.policy import Match, Policy, Rule

__all__ = [
    "DEFAULT_CONFIG_PATH",
    "AttachMethod",
    "AutoConfig",
    "BudgetConfig",
    "Config",
    "HistoryConfig",
    "LimitsConfig",
    "LogConfig",
    "LogFormat",
    "LogLevel",
    "MatchConfig",
    "MetricsConfig",
    "PolicyConfig",
    "ProcessEventsConfig",
    "ProcessSource",
    "RuleConfig",
    "RuleLimits",
    "SamplingConfig",
    "StateConfig",
    "Walker",
    "WindowMode",
    "load_config",
]

DEFAULT_CONFIG_PATH = Path("/etc/bpfleakd/config.yaml")

# sockaddr_un.sun_path has 108 bytes, one of them the final zero (unix(7)).
_SOCKET_PATH_BYTES = 107

Pid = Annotated[int, msgspec.Meta(ge=1, le=4_194_304)]  # PID_MAX_LIMIT of a 64-bit kernel
Glob = Annotated[str, msgspec.Meta(min_length=1)]
TableSize = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]


class AttachMethod(StrEnum):
    """How probes are linked; AUTO takes the best one that works."""

    AUTO = "auto"
    SESSION = "session"
    MULTI = "multi"
    PERF = "perf"


class Walker(StrEnum):
    """How the stack walker is bounded; AUTO takes may_goto where the kernel has it (Linux 6.9)."""

    AUTO = "auto"
    MAY_GOTO = "may_goto"
    TAIL_CALLS = "tail_calls"


class ProcessSource(StrEnum):
    """How processes are noticed; AUTO takes the kernel's events where they are to be had."""

    AUTO = "auto"
    SCAN = "scan"


class LogLevel(StrEnum):
    """The least severe messages that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """AUTO is pretty on a terminal and JSON otherwise."""

    AUTO = "auto"
    PRETTY = "pretty"
    JSON = "json"


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options that belong together."""


class MatchConfig(_Section, frozen=True):
    """What a process has to be; each key that is given has to match. See target/policy.py."""

    pid: Pid | msgspec.UnsetType = msgspec.UNSET
    comm: Glob | msgspec.UnsetType = msgspec.UNSET
    exe: Glob | msgspec.UnsetType = msgspec.UNSET
    cmdline: Glob | msgspec.UnsetType = msgspec.UNSET
    user: Glob | msgspec.UnsetType = msgspec.UNSET
    unit: Glob | msgspec.UnsetType = msgspec.UNSET
    cgroup: Glob | msgspec.UnsetType = msgspec.UNSET
    container: Glob | msgspec.UnsetType = msgspec.UNSET

    def given(self) -> dict[str, Any]:
        """The keys that are in the file."""
        values = msgspec.structs.asdict(self)
        return {key: value for key, value in values.items() if value is not msgspec.UNSET}


class RuleLimits(_Section, frozen=True):
    """Limits for each process of a rule; what is not given is as for all (`limits`)."""

    live_blocks: TableSize | msgspec.UnsetType = msgspec.UNSET


class RuleConfig(_Section, frozen=True):
    """What to do with the processes that match."""

    match: MatchConfig
    mode: TracingMode
    follow_children: bool = False
    limits: RuleLimits = RuleLimits()

    def rule(self) -> Rule:
        """The rule as the policy has it."""
        live_blocks = self.limits.live_blocks
        return Rule(
            Match(**self.match.given()),
            self.mode,
            self.follow_children,
            None if live_blocks is msgspec.UNSET else live_blocks,
        )


class PolicyConfig(_Section, frozen=True):
    """Which processes are looked at, and how closely: the first rule that matches decides."""

    default: TracingMode = TracingMode.AUTO
    rules: tuple[RuleConfig, ...] = ()

    def policy(self) -> Policy:
        """The policy itself."""
        return Policy(tuple(rule.rule() for rule in self.rules), self.default)


class ProcessEventsConfig(_Section, frozen=True):
    """How processes are noticed; `scan_s` is the time between scans of /proc, where those are needed."""

    source: ProcessSource = ProcessSource.AUTO
    scan_s: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 1.0


class MetricsConfig(_Section, frozen=True):
    """The TCP address of the metrics, and how many there are.

    A process exports `top_sites` call sites, all together no more than `max_series` series; one that is not
    among the largest any more stays for `linger_s`. `labels` tell processes apart; those with the same are
    summed.
    """

    enabled: bool = True
    address: Annotated[str, msgspec.Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 9797
    top_sites: Annotated[int, msgspec.Meta(ge=0, le=100)] = 10
    max_series: Annotated[int, msgspec.Meta(ge=1_000, le=1_000_000)] = 10_000
    linger_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 300.0
    labels: tuple[MetricLabel, ...] = (
        MetricLabel.COMM,
        MetricLabel.UNIT,
        MetricLabel.CONTAINER,
        MetricLabel.POD,
    )


class LimitsConfig(_Section, frozen=True):
    """Entries in the kernel's tables. `live_blocks` is for each process, the others for all together.

    `process_sites` is what one process may take of `sites`, and of `stacks`, so that others find room too.
    `daemon_rss_bytes` is the daemon's own resident memory.
    """

    processes: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 512
    live_blocks: TableSize = 1_048_576
    sites: TableSize = 65_536
    stacks: TableSize = 65_536
    process_sites: TableSize = 32_768
    threads: TableSize = 16_384
    daemon_rss_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 50)] = 256 << 20


class HistoryConfig(_Section, frozen=True):
    """How far back growth looks, and how long it must go on to be called a leak."""

    window_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 60.0
    leak_after_s: Annotated[float, msgspec.Meta(ge=10, le=86_400)] = 45.0


class WindowMode(StrEnum):
    """How a process is traced in a window of automatic tracing."""

    SAMPLED = "sampled"
    EXACT = "exact"


class AutoConfig(_Section, frozen=True):
    """How the memory of processes is watched, what counts as growth, and how growing ones are traced."""

    interval_s: Annotated[float, msgspec.Meta(ge=0.1, le=3_600)] = 10.0
    warmup_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 60.0
    growth_window_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 300.0
    growth_min_bytes: Annotated[int, msgspec.Meta(ge=4_096, le=1 << 50)] = 1 << 20
    growth_min_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.005
    windows: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 4
    mode: WindowMode = WindowMode.EXACT
    window_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 60.0
    pause_s: Annotated[float, msgspec.Meta(ge=1, le=604_800)] = 300.0
    pause_max_s: Annotated[float, msgspec.Meta(ge=1, le=604_800)] = 3_600.0


class SamplingConfig(_Section, frozen=True):
    """How many blocks of a process are recorded a second, where not all are; or one in how many bytes."""

    target_events_per_s: Annotated[float, msgspec.Meta(ge=10, le=1_000_000)] = 1_500.0
    interval_bytes: Annotated[int, msgspec.Meta(ge=1 << MIN_SHIFT, le=1 << MAX_SHIFT)] | None = None


class BudgetConfig(_Section, frozen=True):
    """What tracing by the policy may cost the traced, in percent of a core: each, and all together."""

    process_percent: Annotated[float, msgspec.Meta(ge=0.1, le=100_000)] = 10.0
    host_percent: Annotated[float, msgspec.Meta(ge=0.1, le=100_000)] = 25.0


class StateConfig(_Section, frozen=True):
    """Where reports of processes that ended are kept, and how many; `dir` None keeps none."""

    dir: Path | None = Path("/var/lib/bpfleakd")
    max_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 40)] = 64 << 20
    max_age_s: Annotated[float, msgspec.Meta(ge=60, le=315_360_000)] = 2_592_000.0


class LogConfig(_Section, frozen=True):
    """What is logged, and how it is written."""

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.AUTO


class Config(_Section, frozen=True):
    """Everything that can be configured."""

    socket: Path = DEFAULT_SOCKET_PATH
    socket_group: Annotated[str, msgspec.Meta(min_length=1)] | None = "bpfleakd"
    bpffs_dir: Path = Path("/sys/fs/bpf/bpfleakd")
    cache_dir: Path | None = None
    attach_method: AttachMethod = AttachMethod.AUTO
    walker: Walker = Walker.AUTO
    tick_s: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 1.0
    unattended_s: Annotated[float, msgspec.Meta(ge=1, le=604_800)] = 900.0
    policy: PolicyConfig = PolicyConfig()
    process_events: ProcessEventsConfig = ProcessEventsConfig()
    suppressions: tuple[Path, ...] = ()
    metrics: MetricsConfig = MetricsConfig()
    limits: LimitsConfig = LimitsConfig()
    history: HistoryConfig = HistoryConfig()
    sampling: SamplingConfig = SamplingConfig()
    auto: AutoConfig = AutoConfig()
    budget: BudgetConfig = BudgetConfig()
    state: StateConfig = StateConfig()
    log: LogConfig = LogConfig()


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
        raise ConfigError(f"{named}: no such file", "name an existing file, or none at all") from error
    except OSError as error:
        raise ConfigError(f"{named}: cannot be read: {error.strerror}") from error
    return _Document(named, content).config()


class _Loader(yaml.SafeLoader):
    """SafeLoader, except that a value it cannot make is an error with a position too.

    Of the words for truth only `true` and `false` are (as in YAML 1.2): `mode: off` is a mode.
    """

    yaml_implicit_resolvers: ClassVar = {
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
        for keys, words in _contradictions(config):
            given = (_node_at(root, key.split(".")) for key in keys)
            line = _line(next(filter(None, given)))
            raise self._error(line, f"{_dotted(keys[0].split('.'))}: {words}")
        return config

    def _check_keys(self, node: yaml.Node, dotted: str, seen: set[int]) -> None:
        """Raise for keys that are no text or come twice; YAML itself lets the last one win."""
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
            key = next(key for key, _ in _node_at(root, steps).value if key.value == unknown[1])
            dotted = _dotted([*steps, key.value])
            return self._error(_line(key), f"{dotted}: unknown key", _meant(steps, key.value))
        node = _node_at(root, steps)
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


def _contradictions(config: Config) -> Iterator[tuple[list[str], str]]:
    """Yield (the keys that are to blame, words) for what no type can express."""
    if len(bytes(config.socket)) > _SOCKET_PATH_BYTES:
        yield ["socket"], f"a unix socket's path has at most {_SOCKET_PATH_BYTES} bytes"
    if config.unattended_s < 5 * config.tick_s:
        words = f"has to be five ticks or more (tick_s: {config.tick_s:g})"
        yield ["unattended_s", "tick_s"], words
    interval_bytes = config.sampling.interval_bytes
    if interval_bytes is not None and interval_bytes.bit_count() != 1:
        yield ["sampling.interval_bytes"], f"has to be a power of 2, not {interval_bytes}"
    if config.history.window_s < 2 * config.tick_s:
        words = f"growth needs a window of two ticks or more (tick_s: {config.tick_s:g})"
        yield ["history.window_s", "tick_s"], words
    if len(set(config.metrics.labels)) < len(config.metrics.labels):
        yield ["metrics.labels"], "a label is there twice"
    auto = config.auto
    if auto.growth_window_s < 8 * max(auto.interval_s, config.tick_s):
        words = f"growth needs a window of eight readings or more (auto.interval_s: {auto.interval_s:g})"
        yield ["auto.growth_window_s", "auto.interval_s", "tick_s"], words
    if auto.pause_max_s < auto.pause_s:
        yield (
            ["auto.pause_max_s", "auto.pause_s"],
            f"less than the first pause (auto.pause_s: {auto.pause_s:g})",
        )

    for index, rule in enumerate(config.policy.rules):
        if not rule.match.given():
            words = "expected one key at least (what holds for all others is policy.default)"
            yield [f"policy.rules.{index}.match"], words


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
    if not node.value:
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
            kind = next(field.type for field in kind.fields if field.encode_name == step)
        else:
            kind = kind.item_type
    return kind


def _dotted(steps: list[str]) -> str:
    return re.sub(r"\.(\d+)", r"[\1]", ".".join(steps))


def _section(steps: list[str]) -> str:
    """Return the name of a section: all items of a list have the same."""
    return ".".join(step for step in steps if not step.isdigit())


def _known_keys() -> dict[str, list[str]]:
    """Return the keys of each section; the section "" is the top of the file."""
    keys: dict[str, list[str]] = {}
    pending = [("", msgspec.inspect.type_info(Config))]
    while pending:
        name, kind = pending.pop(0)
        if isinstance(kind, msgspec.inspect.StructType):
            keys[name] = [field.encode_name for field in kind.fields]
            pending += [(f"{name}.{field.encode_name}".strip("."), field.type) for field in kind.fields]
        elif isinstance(kind, msgspec.inspect.VarTupleType):
            pending.append((name, kind.item_type))
    return keys


def _meant(steps: list[str], key: str) -> str:
    """Return a hint for an unknown key: the likeliest one here, else elsewhere, else the list."""
    known = _known_keys()
    section = _section(steps)
    homes = {name: home for home, names in known.items() for name in names}
    homes |= dict.fromkeys(known[section], section)
    close = (
        [key] * (key in homes)
        or difflib.get_close_matches(key, known[section], n=1)
        or difflib.get_close_matches(key, homes, n=1)
    )
    if not close:
        return f"known here: {', '.join(known[section])}"
    home = homes[close[0]]
    return f"did you mean {home}.{close[0]}?" if home else f"did you mean {close[0]}?"
