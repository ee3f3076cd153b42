"""The configuration file: accepted values, and errors for all others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.config import Config, LogConfig, LogFormat, LogLevel, WantedAttachMethod, is_reloaded, reloaded
from bpfleakd.config_file import load_config
from bpfleakd.errors import ConfigError
from bpfleakd.model.process import TracingMode
from bpfleakd.process.policy.rules import Match, Policy, Rule

EXAMPLE = Path(__file__).parents[2] / "deploy/config.example.yaml"


def load(tmp_path: Path, text: str | bytes) -> Config:
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_config(path)


def refused(tmp_path: Path, text: str | bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.exit_code == 2
    return caught.value


# -- accepted --------------------------------------------------------------------------------------------


def test_the_example_shows_every_key_with_its_default():
    """deploy/config.example.yaml is the documentation: it must not drift from the code."""
    assert load_config(EXAMPLE) == Config()
    shown = yaml.safe_load(EXAMPLE.read_text())
    assert shown.keys() == msgspec.to_builtins(Config(), enc_hook=str).keys()
    for section, values in msgspec.to_builtins(Config(), enc_hook=str).items():
        if isinstance(values, dict):
            assert shown[section].keys() == values.keys()


@pytest.mark.parametrize("key", Config.__struct_fields__)
def test_every_key_says_whether_it_is_reloaded(key):
    """Nothing is reloadable by omission."""
    assert is_reloaded(key) in (True, False)


def test_the_example_says_what_is_reloaded():
    """In the words of its head."""
    listed = re.search(r"\(SIGHUP\) applies changes of (.*); others need a restart", EXAMPLE.read_text())
    assert listed is not None
    assert set(re.findall(r"\w+", listed[1])) - {"and"} == set(filter(is_reloaded, Config.__struct_fields__))


def test_a_reload_compares_with_what_is_in_force():
    """Keys that need a restart stay pending, and a return to the values in force is not a change."""
    started = Config()
    changed = msgspec.structs.replace(started, unattended_s=600.0, tick_s=2.0)
    again = msgspec.structs.replace(changed, log=LogConfig(level=LogLevel.DEBUG))

    first, waiting = reloaded(started, changed)
    assert (first.tick_s, first.unattended_s, waiting) == (2.0, 900.0, ["unattended_s"])
    second, waiting = reloaded(first, again)
    assert (second.log.level, second.unattended_s, waiting) == (LogLevel.DEBUG, 900.0, ["unattended_s"])
    assert reloaded(second, started) == (started, [])


def test_no_file_is_the_defaults(tmp_path):
    """A machine without /etc/bpfleakd/config.yaml needs none."""
    assert load_config(default_path=tmp_path / "absent.yaml") == Config()


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n# nothing\n", "{}"])
def test_an_empty_file_is_the_defaults(tmp_path, text):
    """Everything may be left out."""
    assert load(tmp_path, text) == Config()


def test_the_default_path_is_read_if_it_is_there(tmp_path):
    """Absent is fine, present counts."""
    path = tmp_path / "config.yaml"
    path.write_text("tick_s: 2\n")
    assert load_config(default_path=path).tick_s == 2.0


def test_given_keys_are_taken_and_the_rest_is_default(tmp_path):
    """A section may be given in part."""
    config = load(
        tmp_path,
        "attach_method: perf\nsocket: /tmp/x.sock\nmetrics:\n  port: 1234\nlog: {format: json}\n",
    )
    assert config.attach_method is WantedAttachMethod.PERF
    assert config.socket == Path("/tmp/x.sock")
    assert (config.metrics.port, config.metrics.address) == (1234, "127.0.0.1")
    assert (config.log.format, config.log.level) == (LogFormat.JSON, LogLevel.INFO)


def test_rules_become_a_policy(tmp_path):
    """In their order, with what each leaves out."""
    config = load(
        tmp_path,
        "policy:\n  default: watch\n  rules:\n"
        "    - {match: {comm: 'nginx*', user: '33'}, mode: exact, follow_children: true}\n"
        "    - {match: {pid: 2311}, mode: off, limits: {live_blocks: 1009}}\n",
    )
    assert config.policy.policy() == Policy(
        (
            Rule(Match(comm="nginx*", user="33"), TracingMode.EXACT, follow_children=True),
            Rule(Match(pid=2311), TracingMode.OFF, live_blocks=1009),
        ),
        TracingMode.WATCH,
    )


def test_anchors_work(tmp_path):
    """YAML's own means stay usable."""
    config = load(tmp_path, "limits:\n  sites: &n 1009\n  stacks: *n\n")
    assert config.limits.sites == config.limits.stacks == 1009


_sizes = st.integers(1, 100_000_000)
_globs = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1)
_matches = st.dictionaries(
    st.sampled_from(["comm", "exe", "cmdline", "user", "unit", "cgroup", "container"]), _globs, min_size=1
)
_rules = st.fixed_dictionaries(
    {
        "match": _matches | st.fixed_dictionaries({"pid": st.integers(1, 4_194_304)}),
        "mode": st.sampled_from(list(TracingMode)).map(str),
        "follow_children": st.booleans(),
        "limits": st.fixed_dictionaries({}, optional={"live_blocks": _sizes}),
    }
)
_valid = st.fixed_dictionaries(
    {},
    optional={
        "socket": st.just("/run/somewhere.sock"),
        "attach_method": st.sampled_from(list(WantedAttachMethod)).map(str),
        "tick_s": st.floats(0.1, 10) | st.integers(1, 10),
        "policy": st.fixed_dictionaries(
            {},
            optional={
                "default": st.sampled_from(list(TracingMode)).map(str),
                "rules": st.lists(_rules, max_size=3),
            },
        ),
        "metrics": st.fixed_dictionaries(
            {},
            optional={
                "enabled": st.booleans(),
                "address": st.ip_addresses().map(str),
                "port": st.integers(1, 65_535),
                "top_sites": st.integers(0, 100),
            },
        ),
        "limits": st.fixed_dictionaries({}, optional={"sites": _sizes, "stacks": _sizes, "threads": _sizes}),
        "history": st.fixed_dictionaries({}, optional={"window_s": st.floats(20, 3600)}),
        "log": st.fixed_dictionaries({}, optional={"level": st.sampled_from(list(LogLevel)).map(str)}),
    },
)


@given(values=_valid, flow=st.booleans())
def test_whatever_is_written_is_read_back(tmp_path_factory, values: dict[str, Any], flow):
    """Each value given arrives, in block and in flow style, and nothing else changes."""
    text = yaml.safe_dump(values, default_flow_style=flow)
    read = msgspec.json.encode(load(tmp_path_factory.mktemp("config"), text), enc_hook=str)
    expected = msgspec.to_builtins(Config(), enc_hook=str)
    for key, value in values.items():
        if isinstance(value, dict):
            expected[key].update(value)
        else:
            expected[key] = value
    assert msgspec.json.decode(read) == json.loads(json.dumps(expected))


@given(values=_valid, lines=st.integers(0, 5), word=st.from_regex(r"[a-z]{3,12}x_q", fullmatch=True))
def test_an_unknown_key_is_found_wherever_it_stands(tmp_path_factory, values, lines, word):
    """The line named is the line of the key."""
    known = yaml.safe_dump(values, default_flow_style=False) if values else ""
    text = known + "\n" * lines + f"{word}: 1\n"
    error = refused(tmp_path_factory.mktemp("config"), text)
    assert f"config.yaml:{text.count(chr(10))}: {word}: unknown key" in error.message


# -- errors ----------------------------------------------------------------------------------------------

_MISTAKES = [
    # text, line, message after the line
    ("socket: /x\ntick: 1\n", 2, "tick: unknown key"),
    ("metrics:\n  enabled: true\n\n  prot: 1\n", 4, "metrics.prot: unknown key"),
    ("metrics: {prot: 1}\n", 1, "metrics.prot: unknown key"),
    ("metrics:\n  port: '9797'\n", 2, "metrics.port: expected a whole number, got '9797'"),
    ("metrics:\n  port: 1.5\n", 2, "metrics.port: expected a whole number, got 1.5"),
    ("metrics:\n  port: 70000\n", 2, "metrics.port: expected a whole number <= 65535, got 70000"),
    ("metrics:\n  port: 0\n", 2, "metrics.port: expected a whole number >= 1, got 0"),
    ("metrics:\n  port:\n    [1]\n", 3, "metrics.port: expected a whole number, got a list"),
    ("metrics:\n  enabled: 1\n", 2, "metrics.enabled: expected true or false, got 1"),
    ("metrics:\n  top_sites: 101\n", 2, "metrics.top_sites: expected a whole number <= 100, got 101"),
    ("metrics:\n  address: ''\n", 2, "metrics.address: expected text of length >= 1, got nothing"),
    ("metrics:\n  address: 1\n", 2, "metrics.address: expected text, got 1"),
    ("\nmetrics:\nlog: {}\n", 2, "metrics: expected a mapping, got nothing"),
    ("metrics: on\n", 1, "metrics: expected a mapping, got on"),
    ("tick_s: 0.05\n", 1, "tick_s: expected a number >= 0.1, got 0.05"),
    ("tick_s: 61\n", 1, "tick_s: expected a number <= 60.0, got 61"),
    ("tick_s: .nan\n", 1, "tick_s: expected a number >= 0.1, got .nan"),
    ("tick_s: .inf\n", 1, "tick_s: expected a number <= 60.0, got .inf"),
    ("tick_s: 1 s\n", 1, "tick_s: expected a number, got 1 s"),
    ("tick_s: yes\n", 1, "tick_s: expected a number, got yes"),
    ("pids: [23]\n", 1, "pids: unknown key"),
    ("policy: exact\n", 1, "policy: expected a mapping, got exact"),
    ("policy:\n  default: true\n", 2, "policy.default: expected text, got true"),
    (
        "policy:\n  default: exakt\n",
        2,
        "policy.default: expected one of off, watch, auto, sampled, exact, inside, got exakt",
    ),
    ("policy:\n  rules: {}\n", 2, "policy.rules: expected a list, got a mapping"),
    ("policy:\n  rules:\n    - nginx\n", 3, "policy.rules[0]: expected a mapping, got nginx"),
    ("policy:\n  rules:\n    - mode: exact\n", 3, "policy.rules[0]: the key match is missing"),
    (
        "policy:\n  rules:\n    - match: {pid: 1}\n      mode: off\n    - match: {pid: 2}\n",
        5,
        "policy.rules[1]: the key mode is missing",
    ),
    (
        "policy:\n  rules:\n    - match: {comm: x}\n      mode: fast\n",
        4,
        "policy.rules[0].mode: expected one of off, watch, auto, sampled, exact, inside, got fast",
    ),
    (
        "policy:\n  rules:\n    - mode: exact\n      match: {}\n",
        4,
        "policy.rules[0].match: expected at least one key",
    ),
    (
        "policy:\n  rules:\n    - mode: exact\n      match:\n        pid: 0\n",
        5,
        "policy.rules[0].match.pid: expected a whole number >= 1, got 0",
    ),
    (
        "policy:\n  rules:\n    - mode: exact\n      match:\n        user: 1000\n",
        5,
        "policy.rules[0].match.user: expected text, got 1000",
    ),
    (
        "policy:\n  rules:\n    - mode: exact\n      match:\n        comm: ''\n",
        5,
        "policy.rules[0].match.comm: expected text of length >= 1, got nothing",
    ),
    (
        "policy:\n  rules:\n    - mode: exact\n      match:\n        name: x\n",
        5,
        "policy.rules[0].match.name: unknown key",
    ),
    (
        "policy:\n  rules:\n    - mode: exact\n      match: {pid: 1}\n      limits:\n        sites: 1\n",
        6,
        "policy.rules[0].limits.sites: unknown key",
    ),
    ("attach_method: sesion\n", 1, "attach_method: expected one of auto, session, multi, perf, got sesion"),
    ("log:\n  level: loud\n", 2, "log.level: expected one of debug, info, warning, error, got loud"),
    ("socket: run/x.sock\n", 1, "socket: expected an absolute path, got run/x.sock"),
    ("socket: 1\n", 1, "socket: expected an absolute path, got 1"),
    (f"\nsocket: /{'x' * 107}\n", 2, "socket: a unix socket's path has at most 107 bytes"),
    ("limits:\n  live_blocks: -1\n", 2, "limits.live_blocks: expected a whole number >= 1, got -1"),
    (
        "history:\n  window_s: 5\ntick_s: 3\n",
        2,
        "history.window_s: growth needs a window of two ticks or more",
    ),
    ("log: {}\ntick_s: 60\n", 2, "history.window_s: growth needs a window of two ticks or more (tick_s: 60)"),
    ("tick_s: 1\nlog: {}\ntick_s: 2\n", 3, "tick_s: given twice, first on line 1"),
    ("log:\n  level: info\n  level: info\n", 3, "log.level: given twice, first on line 2"),
    ("1: 2\n", 1, "key 1 is not text"),
    ("log:\n  true: 2\n", 2, "key true is not text"),
    ("metrics:\n  enabled: yes\n", 2, "metrics.enabled: expected true or false, got yes"),
    ("? [a]\n: 1\n", 1, "key a list is not text"),
    ("- 1\n", 1, "the whole file: expected a mapping, got a list"),
    ("just words\n", 1, "the whole file: expected a mapping, got just words"),
    ("socket: /x\nlog: {level: info\n", 3, "not YAML: while parsing a flow mapping"),
    ("socket: /x\n\tlog: 1\n", 2, "not YAML: while scanning for the next token"),
    ("socket: 'x\n", 2, "not YAML: while scanning a quoted scalar"),
    ("a: 1\n---\nb: 2\n", 2, "not YAML: expected a single document in the stream"),
    ("log: *nobody\n", 1, "not YAML: found undefined alias"),
    ("tick_s: !!python/name:os.system\n", 1, "not YAML: could not determine a constructor"),
    ("tick_s: !!int x\n", 1, "not YAML: not a value of type int"),
    ("log: {}\ntick_s: !!bool x\n", 2, "not YAML: not a value of type bool"),
    ("log: {}\ntick_s: 2024-99-99\n", 2, "not YAML: not a value of type timestamp"),
    ("log: &a [*a]\n", 1, "log: expected a mapping, got a list"),
    (b"log: {}\n# caf\xe9\n", 2, "byte 0xe9 is not UTF-8"),
    (b"log: {}\nsocket: \x07\n", 2, "character U+0007 is not allowed"),
    ("[" * 5_000, 1, "nested too deeply"),
]


@pytest.mark.parametrize(("text", "line", "words"), _MISTAKES)
def test_a_mistake_is_told_with_path_line_and_key(tmp_path, text, line, words):
    """The message is `path:line: key: expected value, and actual value`."""
    assert refused(tmp_path, text).message.startswith(f"{tmp_path}/config.yaml:{line}: {words}")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("metrics:\n  prot: 1\n", "did you mean metrics.port?"),
        ("sokcet: /x\n", "did you mean socket?"),
        ("port: 1\n", "did you mean metrics.port?"),
        ("limits:\n  tick_s: 1\n", "did you mean tick_s?"),
        ("history:\n  zzz: 1\n", "known here: window_s, leak_after_s"),
        ("history:\n  enabled: 1\n", "known here: window_s, leak_after_s"),
        ("log: {}\nlog: {}\n", "remove one of the two"),
        ("policy: {rules: [{match: {com: x}}]}\n", "did you mean policy.rules.match.comm?"),
        ("policy: {rules: [{match: {pid: 1}}]}\n", "known here: match, mode, follow_children, limits"),
    ],
)
def test_a_mistake_has_a_way_out(tmp_path, text, hint):
    """A misspelt key is guessed, in its section first; one that resembles nothing gets the list."""
    assert refused(tmp_path, text).hint == hint


def test_control_characters_of_the_file_do_not_reach_the_terminal(tmp_path):
    """A value is quoted with its escapes shown."""
    error = refused(tmp_path, 'tick_s: "\\e]0;x\\a"\n')
    assert str(error).isprintable()


def test_a_named_file_must_exist(tmp_path):
    """A path that was typed is never silently ignored."""
    with pytest.raises(ConfigError, match=r"absent\.yaml: no such file"):
        load_config(tmp_path / "absent.yaml")


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    """A directory, for one."""
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(default_path=tmp_path)
