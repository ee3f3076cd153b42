"""Which rule decides, and what never is decided by rules."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.model.process import TracingMode
from bpfleakd.process.policy.rules import Decision, Match, Policy, Rule

OWN_PID = 4242
EXACT, WATCH, OFF, AUTO = TracingMode.EXACT, TracingMode.WATCH, TracingMode.OFF, TracingMode.AUTO


@dataclass(frozen=True)
class Process:
    """A process with all the texts that rules may ask for."""

    pid: int = 2311
    hosts_init: bool = False
    kernel_thread: bool = False
    comm: str | None = "nginx"
    exe: str | None = "/usr/sbin/nginx"
    cmdline: str | None = "nginx: worker process"
    user: str | None = "www-data"
    uid: int | None = 33
    unit: str | None = "nginx.service"
    cgroup: str | None = "/system.slice/nginx.service"
    container: str | None = None


class AsksNothing:
    """A process whose texts must not be read: each read of /proc has a cost."""

    pid = 2311
    hosts_init = False
    kernel_thread = False

    def __getattr__(self, name: str) -> str:
        raise AssertionError(f"{name} was asked for")


def decide(process: Process, *rules: Rule, inherited: Rule | None = None) -> Decision:
    return Policy(rules).decide(process, OWN_PID, inherited)


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        (Match(pid=2311), True),
        (Match(pid=2312), False),
        (Match(comm="nginx"), True),
        (Match(comm="ngin"), False),
        (Match(comm="NGINX"), False),
        (Match(comm="n*x"), True),
        (Match(comm="ngin?"), True),
        (Match(comm="[mn]ginx"), True),
        (Match(exe="/usr/*"), True),
        (Match(exe="*/nginx"), True),
        (Match(cmdline="*worker*"), True),
        (Match(user="www-data"), True),
        (Match(user="33"), True),
        (Match(user="34"), False),
        (Match(unit="*.service"), True),
        (Match(unit="nginx"), True),
        (Match(unit="ngin"), False),
        (Match(cgroup="/system.slice/*"), True),
        (Match(container="*"), False),
        (Match(comm="nginx", user="root"), False),
        (Match(comm="nginx", user="www-data", pid=2311), True),
        (Match(), True),
    ],
)
def test_all_patterns_of_a_rule_have_to_match(match, matches):
    """As whole texts, case-sensitive; a missing property does not match."""
    assert match.matches(Process()) is matches


def test_the_first_rule_that_matches_decides():
    """Whatever comes after it."""
    rules = (
        Rule(Match(comm="apache*"), OFF),
        Rule(Match(user="www-data"), EXACT, live_blocks=1009),
        Rule(Match(comm="nginx"), OFF),
    )
    decision = decide(Process(), *rules)
    assert decision == Decision(EXACT, "rule 2", rules[1])
    assert decision.live_blocks == 1009


def test_what_no_rule_matches_has_the_default():
    """`auto`, unless another is given."""
    assert Policy().decide(Process(), OWN_PID) == Decision(AUTO, "default")
    assert Policy(default=OFF).decide(Process(), OWN_PID).mode is OFF


@pytest.mark.parametrize(
    ("process", "reason"),
    [
        (Process(pid=OWN_PID), "bpfleakd itself"),
        (Process(hosts_init=True), "init"),
        (Process(kernel_thread=True), "kernel thread"),
    ],
)
def test_some_are_left_alone_whatever_the_rules_say(process, reason):
    """Nothing of the policy can put the host at risk."""
    assert decide(process, Rule(Match(), EXACT)) == Decision(OFF, reason)


def test_a_child_is_followed_by_the_rule_that_decided_its_parent():
    """Also when it executes something that no rule matches."""
    rule = Rule(Match(comm="supervisord"), EXACT, follow_children=True)
    parent = decide(Process(comm="supervisord"), rule)
    assert parent.follows_children
    child = decide(Process(comm="worker"), rule, inherited=parent.rule)
    assert child == parent
    assert decide(Process(comm="grandchild"), rule, inherited=child.rule) == parent


def test_children_are_not_followed_unless_asked():
    """A child that does not match has the default."""
    parent = decide(Process(comm="supervisord"), Rule(Match(comm="supervisord"), EXACT))
    assert not parent.follows_children
    assert not Policy().decide(Process(), OWN_PID).follows_children


def test_a_rule_that_is_gone_is_not_inherited():
    """After the configuration was read again."""
    rule = Rule(Match(comm="supervisord"), EXACT, follow_children=True)
    assert decide(Process(comm="worker"), inherited=rule).mode is AUTO


def test_whether_anything_is_traced_from_its_start():
    """By default or by a rule."""
    assert not Policy([Rule(Match(comm="a"), TracingMode.WATCH)]).attaches_at_once
    assert Policy([Rule(Match(comm="a"), EXACT)]).attaches_at_once
    assert Policy([], TracingMode.SAMPLED).attaches_at_once


def test_a_rule_before_the_followed_one_goes_first():
    """So some children can be excluded."""
    rules = (Rule(Match(comm="sh"), OFF), Rule(Match(comm="make"), EXACT, follow_children=True))
    assert decide(Process(comm="sh"), *rules, inherited=rules[1]).mode is OFF
    assert decide(Process(comm="cc1"), *rules, inherited=rules[1]).mode is EXACT


def test_a_process_is_asked_only_for_what_rules_need():
    """Everything else would be a file of /proc read for nothing, for each process that is started."""
    policy = Policy((Rule(Match(pid=23), EXACT),))
    assert policy.decide(AsksNothing(), OWN_PID).mode is AUTO


@given(
    st.lists(st.sampled_from([Match(comm="a*"), Match(comm="*b"), Match(user="x")]), max_size=6), st.data()
)
def test_the_rule_named_matches_and_none_before_it_does(matches, data):
    """For any order of rules."""
    process = Process(
        comm=data.draw(st.sampled_from(["ab", "ba", "a", "b"])), user=data.draw(st.sampled_from(["x", "y"]))
    )
    decision = Policy([Rule(match, EXACT) for match in matches]).decide(process, OWN_PID)
    if decision.rule is None:
        assert not any(match.matches(process) for match in matches)
    else:
        number = int(decision.why.removeprefix("rule "))
        assert decision.rule.match == matches[number - 1]
        assert matches[number - 1].matches(process)
        assert not any(match.matches(process) for match in matches[: number - 1])
