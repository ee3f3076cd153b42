"""The configuration keys, with a default for everything; config_file.py reads the file.

deploy/config.example.yaml shows every key.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec

from bpfleakd.analysis.sampling_rate import MAX_SHIFT, MIN_SHIFT
from bpfleakd.model.metrics import MetricLabel
from bpfleakd.model.process import TracingMode
from bpfleakd.model.resources import RecordedDescriptors
from bpfleakd.paths import DEFAULT_SOCKET_PATH
from bpfleakd.process.policy.rules import Match, Policy, Rule

# sockaddr_un.sun_path has 108 bytes, one of them the final zero (unix(7)).
_SOCKET_PATH_BYTES = 107

Pid = Annotated[int, msgspec.Meta(ge=1, le=4_194_304)]  # PID_MAX_LIMIT of a 64-bit kernel
Glob = Annotated[str, msgspec.Meta(min_length=1)]
TableSize = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]


class WantedAttachMethod(StrEnum):
    """How probes are linked; AUTO uses the best method that works."""

    AUTO = "auto"
    SESSION = "session"
    MULTI = "multi"
    PERF = "perf"


class Walker(StrEnum):
    """How the stack walker's loop is bounded; AUTO uses may_goto if the kernel supports it (Linux 6.9)."""

    AUTO = "auto"
    MAY_GOTO = "may_goto"
    TAIL_CALLS = "tail_calls"


class WantedSyscallMethod(StrEnum):
    """How programs are attached to system calls; AUTO uses the kernel's functions if it can (Linux 6.14)."""

    AUTO = "auto"
    TRACEPOINTS = "tracepoints"


class ProcessSource(StrEnum):
    """How the daemon notices processes; AUTO uses the kernel's events if they are available."""

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
    """Conditions for a process; all given keys must match. See process/policy/rules.py."""

    pid: Pid | msgspec.UnsetType = msgspec.UNSET
    comm: Glob | msgspec.UnsetType = msgspec.UNSET
    exe: Glob | msgspec.UnsetType = msgspec.UNSET
    cmdline: Glob | msgspec.UnsetType = msgspec.UNSET
    user: Glob | msgspec.UnsetType = msgspec.UNSET
    unit: Glob | msgspec.UnsetType = msgspec.UNSET
    cgroup: Glob | msgspec.UnsetType = msgspec.UNSET
    container: Glob | msgspec.UnsetType = msgspec.UNSET

    def keys_in_file(self) -> dict[str, Any]:
        """The keys that are in the file."""
        values = msgspec.structs.asdict(self)
        return {key: value for key, value in values.items() if value is not msgspec.UNSET}


class RuleLimits(_Section, frozen=True):
    """Limits for each process of a rule; missing ones are those for all (`limits`)."""

    live_blocks: TableSize | msgspec.UnsetType = msgspec.UNSET


class RuleConfig(_Section, frozen=True):
    """What to do with the processes that match."""

    match: MatchConfig
    mode: TracingMode
    follow_children: bool = False
    limits: RuleLimits = RuleLimits()

    def rule(self) -> Rule:
        """The rule in the policy's form."""
        live_blocks = self.limits.live_blocks
        return Rule(
            Match(**self.match.keys_in_file()),
            self.mode,
            self.follow_children,
            None if live_blocks is msgspec.UNSET else live_blocks,
        )


class PolicyConfig(_Section, frozen=True):
    """Which processes are watched or traced, and how closely: the first rule that matches decides."""

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

    `details`: the address also answers what has addresses of the traced processes: blocks, code mappings,
    profiles. A process exports `top_sites` call sites, all together at most `max_series` series; one that
    is not among the largest any more stays for `linger_s`. `labels` tell processes apart; those with the same
    are summed.
    """

    enabled: bool = True
    address: Annotated[str, msgspec.Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 9797
    details: bool = False
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

    `process_sites` is what one process may take of `sites`, and of `stacks`, so that others find room too; of
    `threads` it may take half.
    `daemon_rss_bytes` is the daemon's own resident memory. `names_s` is how many seconds helpers may look for
    the names of one process at first; a fiftieth of the time that passes is added.
    """

    processes: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 512
    live_blocks: TableSize = 1_048_576
    sites: TableSize = 65_536
    stacks: TableSize = 65_536
    process_sites: TableSize = 32_768
    threads: TableSize = 32_768
    daemon_rss_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 50)] = 256 << 20
    names_s: Annotated[float, msgspec.Meta(ge=1, le=3_600)] = 8.0


class HistoryConfig(_Section, frozen=True):
    """How far back growth looks, and how long it must last to be called a leak."""

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


class DescriptorsConfig(_Section, frozen=True):
    """File descriptors: of which traced processes the call sites that open them are recorded.

    `watched`: those of processes that are only watched are counted.
    """

    call_sites: RecordedDescriptors = RecordedDescriptors.GROWING
    watched: bool = False


class SamplingConfig(_Section, frozen=True):
    """How many blocks of a process are recorded a second, where not all are; or one in how many bytes."""

    target_events_per_s: Annotated[float, msgspec.Meta(ge=10, le=1_000_000)] = 1_500.0
    interval_bytes: Annotated[int, msgspec.Meta(ge=1 << MIN_SHIFT, le=1 << MAX_SHIFT)] | None = None


class BudgetConfig(_Section, frozen=True):
    """What tracing by the policy may cost the traced, in percent of a core: each, and all together."""

    process_percent: Annotated[float, msgspec.Meta(ge=0.1, le=100_000)] = 10.0
    host_percent: Annotated[float, msgspec.Meta(ge=0.1, le=100_000)] = 25.0


class BlameConfig(_Section, frozen=True):
    """Blame: never functions of `skip`, and no caller beyond those of `stop`."""

    skip: tuple[Glob, ...] = ()
    stop: tuple[Glob, ...] = ()


class StateConfig(_Section, frozen=True):
    """Where reports of processes that ended are kept, and how many; `dir` None keeps none."""

    dir: Path | None = Path("/var/lib/bpfleakd")
    max_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 40)] = 64 << 20
    max_age_s: Annotated[float, msgspec.Meta(ge=60, le=315_360_000)] = 2_592_000.0


class LogConfig(_Section, frozen=True):
    """What is logged, and how it is written."""

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.AUTO


# Whether the running daemon applies a changed field of Config, or it holds until a restart.
RELOADED = msgspec.Meta(extra={"reloaded": True})
NEEDS_RESTART = msgspec.Meta(extra={"reloaded": False})


class Config(_Section, frozen=True):
    """Everything that can be configured."""

    socket: Annotated[Path, NEEDS_RESTART] = DEFAULT_SOCKET_PATH
    socket_group: Annotated[Annotated[str, msgspec.Meta(min_length=1)] | None, NEEDS_RESTART] = "bpfleakd"
    bpffs_dir: Annotated[Path, NEEDS_RESTART] = Path("/sys/fs/bpf/bpfleakd")
    cache_dir: Annotated[Path | None, NEEDS_RESTART] = None
    attach_method: Annotated[WantedAttachMethod, NEEDS_RESTART] = WantedAttachMethod.AUTO
    walker: Annotated[Walker, NEEDS_RESTART] = Walker.AUTO
    syscall_method: Annotated[WantedSyscallMethod, NEEDS_RESTART] = WantedSyscallMethod.AUTO
    tick_s: Annotated[float, msgspec.Meta(ge=0.1, le=60), RELOADED] = 1.0
    unattended_s: Annotated[float, msgspec.Meta(ge=1, le=604_800), NEEDS_RESTART] = 900.0
    policy: Annotated[PolicyConfig, RELOADED] = PolicyConfig()
    process_events: Annotated[ProcessEventsConfig, NEEDS_RESTART] = ProcessEventsConfig()
    suppressions: Annotated[tuple[Path, ...], RELOADED] = ()
    metrics: Annotated[MetricsConfig, NEEDS_RESTART] = MetricsConfig()
    limits: Annotated[LimitsConfig, NEEDS_RESTART] = LimitsConfig()
    history: Annotated[HistoryConfig, NEEDS_RESTART] = HistoryConfig()
    blame: Annotated[BlameConfig, NEEDS_RESTART] = BlameConfig()
    sampling: Annotated[SamplingConfig, NEEDS_RESTART] = SamplingConfig()
    auto: Annotated[AutoConfig, NEEDS_RESTART] = AutoConfig()
    descriptors: Annotated[DescriptorsConfig, NEEDS_RESTART] = DescriptorsConfig()
    budget: Annotated[BudgetConfig, NEEDS_RESTART] = BudgetConfig()
    state: Annotated[StateConfig, NEEDS_RESTART] = StateConfig()
    log: Annotated[LogConfig, RELOADED] = LogConfig()


def reloaded(in_force: Config, read: Config) -> tuple[Config, list[str]]:
    """What is in force once a changed file was read, and the changed keys that wait for a restart."""
    changed = [key for key in Config.__struct_fields__ if getattr(read, key) != getattr(in_force, key)]
    taken = {key: getattr(read, key) for key in changed if is_reloaded(key)}
    return msgspec.structs.replace(in_force, **taken), [key for key in changed if key not in taken]


def is_reloaded(key: str) -> bool:
    """Whether a field of Config can change while the daemon runs."""
    hint = get_type_hints(Config, include_extras=True)[key]
    (answer,) = (meta.extra["reloaded"] for meta in hint.__metadata__ if meta.extra)
    return bool(answer)


def contradictions(config: Config) -> Iterator[tuple[list[str], str]]:
    """Yield (the keys that are to blame, words) for what no type can express."""
    if len(bytes(config.socket)) > _SOCKET_PATH_BYTES:
        yield ["socket"], f"a unix socket's path has at most {_SOCKET_PATH_BYTES} bytes"
    if config.unattended_s < 5 * config.tick_s:
        words = f"must be at least five ticks (tick_s: {config.tick_s:g})"
        yield ["unattended_s", "tick_s"], words
    interval_bytes = config.sampling.interval_bytes
    if interval_bytes is not None and interval_bytes.bit_count() != 1:
        yield ["sampling.interval_bytes"], f"must be a power of 2, not {interval_bytes}"
    if config.history.window_s < 2 * config.tick_s:
        words = f"growth needs a window of two ticks or more (tick_s: {config.tick_s:g})"
        yield ["history.window_s", "tick_s"], words
    if len(set(config.metrics.labels)) < len(config.metrics.labels):
        yield ["metrics.labels"], "a label is listed twice"
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
        if not rule.match.keys_in_file():
            words = "expected at least one key (policy.default covers all other processes)"
            yield [f"policy.rules.{index}.match"], words
