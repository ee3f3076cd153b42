"""Decides by rules which processes are traced or watched, and how closely.

The first matching rule decides; without one, the default does. A rule matches if all its patterns do. A rule
with `follow_children` also matches all descendants of the processes that it decided, whatever they execute;
rules before it take precedence, for them too.

Patterns are those of fnmatch: `*` is any text (including slashes), `?` one character, `[ab]` one of these;
they are case-sensitive, and the whole text has to match. A process that lacks the attribute (a container, a
unit) does not match, not even `*`.

The policy always excludes processes that the host depends on or that cannot be traced: kernel threads, init
and the daemon itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from msgspec import Struct
from msgspec.structs import fields

from bpfleakd.model.process import TracingMode


class Subject(Protocol):
    """The attributes of a process that rules use. A missing text is None; `uid` is the effective one."""

    @property
    def pid(self) -> int: ...
    @property
    def hosts_init(self) -> bool: ...
    @property
    def kernel_thread(self) -> bool: ...
    @property
    def comm(self) -> str | None: ...
    @property
    def exe(self) -> str | None: ...
    @property
    def cmdline(self) -> str | None: ...
    @property
    def user(self) -> str | None: ...
    @property
    def uid(self) -> int | None: ...
    @property
    def unit(self) -> str | None: ...
    @property
    def cgroup(self) -> str | None: ...
    @property
    def container(self) -> str | None: ...


class Match(Struct, frozen=True):
    """Patterns that must all match; None matches everything. `user` is a name or a uid in digits."""

    pid: int | None = None
    comm: str | None = None
    exe: str | None = None
    cmdline: str | None = None
    user: str | None = None
    unit: str | None = None
    cgroup: str | None = None
    container: str | None = None

    def matches(self, subject: Subject) -> bool:
        """Whether the process matches. Reads only the attributes that have a pattern."""
        if self.pid is not None and self.pid != subject.pid:
            return False
        return all(
            self._matches_text(name, pattern, subject)
            for name in _TEXTS
            if (pattern := getattr(self, name)) is not None
        )

    @staticmethod
    def _matches_text(name: str, pattern: str, subject: Subject) -> bool:
        if name == "user" and pattern.isdigit():
            return subject.uid == int(pattern)
        if name == "unit" and not any(character in pattern for character in ".*?["):
            pattern += ".service"
        text = getattr(subject, name)
        return text is not None and fnmatchcase(text, pattern)


_TEXTS = tuple(field.name for field in fields(Match) if field.name != "pid")


class Rule(Struct, frozen=True):
    """The mode of matching processes. `live_blocks` limits their recorded outstanding blocks."""

    match: Match
    mode: TracingMode
    follow_children: bool = False
    live_blocks: int | None = None


class Decision(Struct, frozen=True):
    """The mode of a process, and its reason: "rule 2" (counted from 1), "default", or what excludes it.

    `rule` is the one that decided, None if none did.
    """

    mode: TracingMode
    why: str
    rule: Rule | None = None

    @property
    def follows_children(self) -> bool:
        """Whether the same rule decides for the process' children."""
        return self.rule is not None and self.rule.follow_children

    @property
    def live_blocks(self) -> int | None:
        """Maximum of recorded outstanding blocks; None if the rule has no limit."""
        return self.rule.live_blocks if self.rule is not None else None


class Policy(Struct, frozen=True):
    """All rules, and the default for processes that match none."""

    rules: Sequence[Rule] = ()
    default: TracingMode = TracingMode.AUTO

    @property
    def attaches_at_once(self) -> bool:
        """Whether some process must be traced from its start."""
        modes = {self.default, *(rule.mode for rule in self.rules)}
        return bool(modes & {TracingMode.SAMPLED, TracingMode.EXACT, TracingMode.INSIDE})

    def decide(self, subject: Subject, own_pid: int, inherited: Rule | None = None) -> Decision:
        """The decision for a process; `inherited` is its parent's rule, if that follows children."""
        excluded = _never(subject, own_pid)
        if excluded is not None:
            return Decision(TracingMode.OFF, excluded)
        for number, rule in enumerate(self.rules, start=1):
            if rule == inherited or rule.match.matches(subject):
                return Decision(rule.mode, f"rule {number}", rule)
        return Decision(self.default, "default")


def _never(subject: Subject, own_pid: int) -> str | None:
    if subject.pid == own_pid:
        return "bpfleakd itself"
    if subject.hosts_init:
        return "init"
    if subject.kernel_thread:
        return "kernel thread"
    return None
