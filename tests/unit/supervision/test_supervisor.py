"""The supervisor as a state machine: simulated processes, events and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.model.process import MANUAL, ProcessId, TracingMode, TracingRequest
from bpfleakd.model.process_events import ProcessChange, ProcessEvent
from bpfleakd.model.supervision import SupervisionState
from bpfleakd.process.policy.rules import Decision, Match, Policy, Rule
from bpfleakd.process.processes import ProcessStat
from bpfleakd.supervision.growth_watcher import Action, Close, Open
from bpfleakd.supervision.supervisor import Supervisor
from bpfleakd.tracing.attaching.attach import UNHURRIED, AttachWait

MS = 1_000_000
S = 1_000 * MS
OWN_PID = 999_983

FORK, EXEC, EXIT, CHANGED, GAP = (
    ProcessChange.FORK,
    ProcessChange.EXEC,
    ProcessChange.EXIT,
    ProcessChange.CHANGED,
    ProcessChange.GAP,
)
EXACT, AUTO, WATCH, OFF = TracingMode.EXACT, TracingMode.AUTO, TracingMode.WATCH, TracingMode.OFF

BY_POLICY = TracingRequest(rule="default")
TRACED_RULE = Rule(Match(comm="traced*"), EXACT)
POLICY = Policy((TRACED_RULE, Rule(Match(comm="off*"), OFF), Rule(Match(comm="watch*"), WATCH)))


@dataclass(frozen=True)
class Subject:
    """A process to the rules, which ask for nothing but its name here."""

    pid: int
    comm: str
    hosts_init: bool = False
    kernel_thread: bool = False


class World:
    """Processes, which of them are traced, and which watched. A double for all interfaces of the supervisor.
    """

    def __init__(self, policy: Policy = POLICY, *, traced_max: int = 512) -> None:
        self.now_ns = 0
        self.processes: dict[int, ProcessStat] = {}
        self.queue: list[ProcessEvent] = []
        self.traced: dict[int, tuple[ProcessId, str]] = {}
        self.refusals: dict[str, errors.BpfleakdError] = {}
        self.attached: list[int] = []
        self.requests: dict[int, TracingRequest] = {}
        self.ended: list[int] = []
        self.silent: set[int] = set()
        self.samplers: set[int] = set()
        self.watched: dict[ProcessId, Decision] = {}
        self.wanted: list[Action] = []
        self.news: list[tuple[str, ProcessId]] = []
        self.looks = 0
        self._started = 0
        self.supervisor = Supervisor(
            policy, self, self, self, self._take, own_pid=OWN_PID, traced_max=traced_max
        )

    # Events in the world

    def fork(self, pid: int, comm: str = "sh", parent: int = 1, *, told: bool = True) -> ProcessId:
        self._started += 1
        self.processes[pid] = ProcessStat(ProcessId(pid, self._started), parent, comm, kernel_thread=False)
        self.tell(FORK, pid, parent, told=told)
        return self.processes[pid].id

    def exec(self, pid: int, comm: str, *, told: bool = True) -> None:
        self.processes[pid] = replace(self.processes[pid], comm=comm)
        self.tell(EXEC, pid, told=told)

    def exit(self, pid: int, *, told: bool = True) -> None:
        del self.processes[pid]
        self.tell(EXIT, pid, told=told)

    def tell(self, change: ProcessChange, pid: int = 0, parent: int = 0, *, told: bool = True) -> None:
        if told:
            self.queue.append(ProcessEvent(change, pid, parent))

    def pass_time(self, ns: int = 2 * S) -> None:
        """Let the supervisor work until nothing more is due in this time."""
        until_ns = self.now_ns + ns
        due_ns = self.supervisor.work(self.now_ns)
        while due_ns is not None and due_ns <= until_ns:
            self.now_ns = max(self.now_ns, due_ns)
            due_ns = self.supervisor.work(self.now_ns)
        self.now_ns = until_ns

    def tick(self) -> None:
        self.supervisor.tick(self.now_ns)
        self.pass_time(0)

    def states(self) -> dict[int, str]:
        return {process.pid: process.state.value for process in self.supervisor.processes()}

    def state(self, pid: int) -> str | None:
        return self.states().get(pid)

    # Tracer

    def start(
        self,
        pid: int,
        request: TracingRequest = BY_POLICY,
        *,
        expected: ProcessId | None = None,
        wait: AttachWait = UNHURRIED,
        prefer_inside: bool = False,
    ) -> SimpleNamespace:
        process = self.processes.get(pid)
        if process is None or expected not in (None, process.id):
            raise errors.NoSuchProcess(f"no {pid}")
        if process.comm in self.refusals:
            raise self.refusals[process.comm]
        assert not self._is_traced(pid), "attached twice"
        self.traced[pid] = (process.id, process.comm)
        self.attached.append(pid)
        if prefer_inside and pid in self.samplers:
            request = replace(request, mode=TracingMode.INSIDE)
        self.requests[pid] = request
        return SimpleNamespace(request=request)

    def detach(self, pid: int) -> None:
        if pid not in self.traced:
            raise errors.NotAttached("no")
        del self.traced[pid]

    def stop(self, pid: int) -> None:
        del self.traced[pid]

    def request_of(self, pid: int) -> TracingRequest | None:
        return self.requests[pid] if pid in self.traced else None

    def tells_too_little(self, pid: int) -> bool:
        return pid in self.silent

    def is_unchanged(self, pid: int) -> bool:
        return self._is_traced(pid)

    def still_traced(self, pid: int) -> bool:
        if pid in self.traced and not self._is_traced(pid):
            del self.traced[pid]
            self.ended.append(pid)
        return pid in self.traced

    def traced_count(self) -> int:
        return len(self.traced)

    def _is_traced(self, pid: int) -> bool:
        now = self.processes.get(pid)
        return now is not None and self.traced.get(pid) == (now.id, now.comm)

    # Processes

    def all(self) -> Sequence[ProcessStat]:
        return sorted(self.processes.values(), key=lambda stat: stat.id.start_ticks)

    def stat(self, pid: int) -> ProcessStat | None:
        self.looks += 1
        return self.processes.get(pid)

    def subject(self, stat: ProcessStat) -> Subject:
        return Subject(stat.id.pid, stat.comm)

    # Watcher

    def add(self, process: ProcessId, decision: Decision) -> None:
        self.watched[process] = decision

    def remove(self, process: ProcessId) -> None:
        self.watched.pop(process, None)

    def step(self, now_ns: int) -> Sequence[Action]:
        wanted, self.wanted = self.wanted, []
        return wanted

    def opened(self, process: ProcessId, now_ns: int) -> None:
        self.news.append(("opened", process))

    def resumed(self, process: ProcessId, began_ns: int, now_ns: int) -> int:
        self.news.append(("resumed", process))
        return began_ns + 5 * S

    def closed(self, process: ProcessId, now_ns: int) -> None:
        self.news.append(("closed", process))

    def failed(self, process: ProcessId, now_ns: int, reason: str, *, for_good: bool) -> None:
        self.news.append(("refused" if for_good else "failed", process))

    def _take(self) -> list[ProcessEvent]:
        queue, self.queue = self.queue, []
        return queue


@pytest.fixture
def world() -> World:
    return World()


# -- by the policy ---------------------------------------------------------------------------------------


def test_a_process_is_attached_after_exec_of_what_matches(world):
    """Milliseconds later, when its libraries are mapped."""
    world.fork(23)
    world.exec(23, "traced")
    world.pass_time(10 * MS)
    assert world.attached == [23]
    assert world.states() == {23: "traced"}


def test_modes_that_do_not_attach(world):
    """The watcher gets those to watch, with the decision."""
    ids = [world.fork(pid, comm) for pid, comm in ((23, "sh"), (29, "watched"), (31, "off"))]
    world.pass_time()
    assert world.states() == {23: "watched", 29: "watched", 31: "off"}
    assert {process: decision.mode for process, decision in world.watched.items()} == {
        ids[0]: AUTO,
        ids[1]: WATCH,
    }


def test_what_was_there_before_is_found(world):
    """At the start, without an event of it."""
    world.fork(23, "traced", told=False)
    world.supervisor.rescan(world.now_ns)
    world.pass_time()
    assert world.states() == {23: "traced"}


def test_a_burst_of_short_processes_costs_no_look(world):
    """A process that has ended before its turn is dropped unread, and counted."""
    for pid in range(2, 2_002):
        world.fork(pid)
        world.exec(pid, "traced")
        world.exit(pid)
    world.pass_time()
    assert (world.looks, world.attached, world.states()) == (0, [], {})
    assert world.supervisor.short_lived_total == 2_000


def test_what_ends_without_having_been_traced_is_counted_by_rule(world):
    """If a rule should have traced it from its start: not if it was traced or is only watched."""
    world.refusals["traced"] = errors.NoAllocator("none yet")
    for pid, comm in ((23, "traced"), (29, "traced"), (31, "auto"), (37, "sh")):
        world.fork(pid, comm)
        world.exec(pid, comm)
    world.pass_time(10 * MS)
    world.refusals.clear()
    world.exit(23)
    world.pass_time()
    assert world.state(29) == "traced"
    for pid in (29, 31, 37):
        world.exit(pid)
    world.pass_time()
    assert (world.states(), sum(world.supervisor.missed_total.values())) == ({}, 1)
    assert all(why.startswith("rule") for why in world.supervisor.missed_total)


def test_an_allocator_that_is_not_mapped_yet_is_waited_for(world):
    """Some milliseconds after exec the dynamic linker is still at work."""
    world.refusals["traced"] = errors.NoAllocator("none yet")
    world.fork(23, "traced")
    world.exec(23, "traced")
    world.pass_time(10 * MS)
    assert (world.state(23), world.attached) == ("attaching", [])
    del world.refusals["traced"]
    world.pass_time(10 * MS)
    assert world.state(23) == "traced"


@pytest.mark.parametrize(
    "error", [errors.TargetRefused("Go"), errors.NoAllocator("none"), ValueError("a bug")]
)
def test_a_refusal_stands(world, error):
    """It is kept with its reason, counted, and not retried until the process executes another program."""
    world.refusals["traced"] = error
    world.fork(23, "traced")
    world.pass_time()
    assert world.state(23) == "refused"
    assert sum(world.supervisor.refused_total.values()) == 1
    world.refusals.clear()
    world.tell(CHANGED, 23)
    world.supervisor.rescan(world.now_ns)
    world.pass_time()
    assert (world.state(23), world.attached) == ("refused", [])
    world.exec(23, "traced-again")
    world.pass_time()
    assert world.state(23) == "traced"


def test_what_finds_no_room_waits_for_it():
    """At most `limits.processes` at once; the next one when another ends."""
    world = World(traced_max=2)
    for pid in (23, 29, 31):
        world.fork(pid, "traced")
    world.pass_time()
    assert world.states() == {23: "traced", 29: "traced", 31: "waiting"}
    world.exit(23)
    world.pass_time()
    world.tick()
    assert world.states() == {29: "traced", 31: "traced"}


def test_a_table_of_the_kernel_that_is_full_is_not_asked_at_each_tick(world):
    """Only after another process was detached."""
    world.fork(23, "traced")
    world.pass_time()
    world.refusals["traced2"] = errors.TablesFull("full")
    world.fork(29, "traced2")
    world.pass_time()
    looks = world.looks
    world.tick()
    assert (world.state(29), world.looks) == ("waiting", looks)
    world.refusals.clear()
    world.exit(23)
    world.pass_time()
    world.tick()
    assert world.states() == {29: "traced"}


def test_a_process_that_there_is_no_room_for_takes_nothing_from_others(world):
    """Its own tables find no memory, or one of its kind is full: it alone is refused."""
    world.refusals["traced2"] = errors.CapacityError("no table of 4,000,000,000 blocks")
    world.fork(23, "traced2")
    world.pass_time()
    world.fork(29, "traced")
    world.pass_time()
    assert world.states() == {23: "refused", 29: "traced"}


def test_a_policy_that_is_replaced_holds_for_all(world):
    """Traced processes that no longer match are detached, others attached."""
    world.fork(23, "traced")
    world.fork(29, "sh")
    world.pass_time()
    world.supervisor.use(Policy((Rule(Match(comm="sh"), EXACT),), default=OFF), world.now_ns)
    world.pass_time()
    assert world.states() == {23: "off", 29: "traced"}
    assert (set(world.traced), world.watched) == ({29}, {})


def test_another_name_may_mean_another_rule(world):
    """A process that renames itself, or becomes another user."""
    world.fork(23, "sh")
    world.pass_time()
    world.processes[23] = replace(world.processes[23], comm="traced")
    world.tell(CHANGED, 23)
    world.pass_time()
    assert (world.state(23), world.watched) == ("traced", {})


# -- lives -----------------------------------------------------------------------------------------------


def test_exec_ends_a_table_and_begins_another(world):
    """If the new program matches, too."""
    world.fork(23, "traced")
    world.pass_time()
    world.exec(23, "traced-too")
    world.pass_time()
    assert (world.ended, world.attached, world.state(23)) == ([23], [23, 23], "traced")
    world.exec(23, "sh")
    world.pass_time()
    assert (world.ended, world.attached, world.state(23)) == ([23, 23], [23, 23], "watched")


def test_an_end_is_noticed_by_its_event(world):
    """Not at the next tick."""
    world.fork(23, "traced")
    watched = world.fork(29, "sh")
    world.pass_time()
    assert list(world.watched) == [watched]
    world.exit(23)
    world.exit(29)
    world.pass_time(0)
    assert (world.ended, world.states(), world.watched) == ([23], {}, {})


def test_an_end_that_only_the_tracer_notices(world):
    """Exec or exit without an event, until the next scan: the tick tells."""
    world.fork(23, "traced")
    world.pass_time()
    world.exec(23, "traced-too", told=False)
    world.still_traced(23)
    world.tick()
    assert (world.attached, world.state(23)) == ([23, 23], "traced")


def test_a_pid_that_is_used_again_is_another_process(world):
    """Also without an event for the end of the first one."""
    first = world.fork(23, "sh")
    world.pass_time()
    world.exit(23, told=False)
    second = world.fork(23, "sh", told=False)
    world.tell(CHANGED, 23)
    world.pass_time()
    assert first != second
    assert list(world.watched) == [second]


def test_a_first_thread_that_ends_before_the_others_ends_nothing(world):
    """The process is traced on, and noticed when all of it is gone."""
    world.fork(23, "traced")
    world.pass_time()
    world.tell(EXIT, 23)
    world.pass_time()
    assert (world.ended, world.state(23)) == ([], "traced")
    world.exit(23)
    world.pass_time()
    assert (world.ended, world.states()) == ([23], {})


def test_children_are_followed():
    """From the fork on, whatever they execute, and their children."""
    world = World(Policy((replace(TRACED_RULE, follow_children=True),)))
    world.fork(23, "traced")
    world.pass_time()
    world.fork(29, "traced", parent=23)
    world.pass_time(0)
    assert world.attached == [23, 29]
    world.exec(29, "sh")
    world.fork(31, "sh", parent=29)
    world.exit(23)
    world.pass_time()
    assert world.states() == {29: "traced", 31: "traced"}


def test_children_are_followed_after_a_gap():
    """As long as their parent lives."""
    world = World(Policy((replace(TRACED_RULE, follow_children=True),)))
    world.fork(23, "traced")
    world.pass_time()
    world.fork(29, "sh", parent=23, told=False)
    world.tell(GAP)
    world.pass_time()
    assert world.states() == {23: "traced", 29: "traced"}


# -- manual ------------------------------------------------------------------------------------------------


def test_attached_manually_is_traced_whatever_the_policy_says(world):
    """Until it executes another program."""
    world.fork(23, "off")
    world.pass_time()
    world.supervisor.attach(23, world.now_ns)
    world.tell(GAP)
    world.pass_time()
    assert world.state(23) == "traced"
    world.exec(23, "off-too")
    world.pass_time()
    assert (world.state(23), world.traced) == ("off", {})


@pytest.mark.parametrize("mode", [None, TracingMode.EXACT])
def test_attached_manually_without_a_mode(world, mode):
    """A sampler inside the process is used, unless the user wants another mode."""
    world.fork(23, "off")
    world.samplers.add(23)
    traced = world.supervisor.attach(23, world.now_ns, mode)
    (process,) = (process for process in world.supervisor.processes() if process.pid == 23)
    assert traced.request.mode == process.mode == (mode or TracingMode.INSIDE)


def test_news_that_are_older_than_an_attach_by_a_user_change_nothing(world):
    """A program is attached to before the event of its start arrives."""
    world.fork(23, "off")
    world.exec(23, "off-too")
    events, world.queue = world.queue, []
    world.supervisor.attach(23, world.now_ns)
    world.queue = events
    world.pass_time()
    assert (world.state(23), world.supervisor.is_manual(23)) == ("traced", True)


def test_detached_manually_stays_so_until_the_end(world):
    """Not even exec, another policy or a gap changes that; another process with its pid is another."""
    world.fork(23, "traced")
    world.pass_time()
    world.supervisor.detach(23, world.now_ns)
    world.exec(23, "traced-too")
    world.tell(GAP)
    world.supervisor.use(POLICY, world.now_ns)
    world.pass_time()
    assert (world.state(23), world.traced) == ("detached", {})
    world.exit(23)
    world.fork(23, "traced")
    world.pass_time()
    assert world.state(23) == "traced"


def test_what_an_earlier_daemon_traced_goes_on_being_traced(world):
    """Manually attached ones stay manual; those of the policy stay as long as the policy wants it."""
    for pid, comm, manual in (
        (23, "traced", False),
        (29, "off", True),
        (37, "traced", True),
        (41, "off", False),
    ):
        world.fork(pid, comm, told=False)
        world.start(pid, TracingRequest(rule=MANUAL if manual else "rule 1"))
    world.supervisor.adopt(dict.fromkeys([23, 29, 31, 37, 41], 0), world.now_ns)
    world.tell(GAP)
    world.pass_time()
    assert world.states() == {23: "traced", 29: "traced", 37: "traced", 41: "off"}
    rules = [process.rule for process in world.supervisor.processes()]
    assert rules[:3] == ["rule 1", "manual", "manual"]
    assert world.attached == [23, 29, 37, 41]


def test_what_nobody_wrote_down_counts_as_attached_manually_where_the_policy_would_not(world):
    """As far as can be told; not a window."""
    for pid, comm in ((23, "traced"), (29, "off"), (31, "sh")):
        world.fork(pid, comm, told=False)
        world.start(pid, TracingRequest())
    world.supervisor.adopt(dict.fromkeys([23, 29, 31], 0), world.now_ns)
    assert [process.manual for process in world.supervisor.processes()] == [False, True, False]


def test_a_window_that_an_earlier_daemon_opened_ends_in_time(world):
    """It does not become manual, and is watched again afterwards."""
    process = world.fork(23, "sh", told=False)
    world.start(23)
    world.pass_time(3 * S)
    world.supervisor.adopt({23: 0}, world.now_ns)
    world.tell(GAP)
    world.pass_time(1 * S)
    assert (world.state(23), world.supervisor.is_manual(23)) == ("traced", False)
    world.pass_time(2 * S)
    assert (world.state(23), world.traced) == ("watched", {})
    assert world.news == [("resumed", process), ("closed", process)]
    assert process in world.watched


def test_what_was_not_attached_cannot_be_detached(world):
    """It continues unchanged."""
    world.fork(23, "sh")
    world.pass_time()
    with pytest.raises(errors.NotAttached):
        world.supervisor.detach(23, world.now_ns)
    assert world.state(23) == "watched"


# -- windows ---------------------------------------------------------------------------------------------


def open_window(world: World, window_s: float = 5.0) -> ProcessId:
    process = world.fork(23, "sh")
    world.pass_time()
    world.wanted = [Open(process, EXACT, window_s, "grows")]
    world.tick()
    return process


def test_a_window_is_opened_and_closed_in_time(world):
    """The watcher is informed of both."""
    process = open_window(world)
    assert (world.state(23), world.news) == ("traced", [("opened", process)])
    world.pass_time(4 * S)
    assert world.state(23) == "traced"
    world.pass_time(2 * S)
    assert (world.state(23), world.traced) == ("watched", {})
    assert world.news == [("opened", process), ("closed", process)]


def test_a_window_that_tells_too_little_goes_on(world):
    """As of a Go heap that is collected seldom; but not if it takes too much."""
    open_window(world)
    world.silent = {23}
    world.pass_time(40 * S)
    assert world.state(23) == "traced"
    world.silent = set()
    world.pass_time(30 * S)
    assert (world.state(23), world.traced) == ("watched", {})


def test_a_window_can_be_closed_early(world):
    """By the watcher."""
    process = open_window(world)
    world.wanted = [Close(process, "enough")]
    world.tick()
    assert (world.traced, world.news) == ({}, [("opened", process), ("closed", process)])


def test_what_takes_too_much_is_let_go_of(world):
    """And not attached to again until it executes something else; a look at all processes changes nothing."""
    world.fork(23)
    world.exec(23, "traced")
    world.pass_time()
    assert not world.supervisor.is_manual(23)
    world.supervisor.evict(23, "too dear", world.now_ns)
    world.tell(GAP)
    world.pass_time()
    assert (world.state(23), world.traced) == ("refused", {})
    world.exec(23, "traced")
    world.pass_time()
    assert world.state(23) == "traced"


def test_a_window_that_takes_too_much_is_closed(world):
    """The watcher lets it rest, as after any window, whatever it has told."""
    process = open_window(world)
    world.silent = {23}
    world.supervisor.evict(23, "too dear", world.now_ns)
    world.pass_time(1)
    assert (world.state(23), world.traced) == ("watched", {})
    assert world.news == [("opened", process), ("closed", process)]


def test_what_was_attached_manually_can_be_let_go_of_too(world):
    """The daemon's memory goes first."""
    world.fork(23)
    world.pass_time()
    world.supervisor.attach(23, world.now_ns)
    assert world.supervisor.is_manual(23)
    world.supervisor.evict(23, "too large", world.now_ns)
    world.tell(GAP)
    world.pass_time()
    assert (world.state(23), world.traced) == ("refused", {})


def test_a_gap_leaves_windows_open(world):
    """A gap changes no facts."""
    open_window(world)
    world.tell(GAP)
    world.pass_time(S)
    assert world.state(23) == "traced"


def test_exec_and_exit_end_a_window(world):
    """Then the watcher drops the process, or starts over with it."""
    process = open_window(world)
    world.exec(23, "watched")
    world.pass_time()
    assert (world.state(23), world.traced, list(world.watched)) == ("watched", {}, [process])
    world.exit(23)
    world.pass_time()
    assert world.watched == {}


def test_a_window_that_cannot_be_opened(world):
    """The watcher learns whether it may ask again."""
    world.refusals["sh"] = errors.TargetRefused("Go")
    process = open_window(world)
    assert (world.state(23), world.news) == ("refused", [("refused", process)])
    world.wanted = [Open(process, EXACT, 5.0, "grows")]
    world.tick()
    assert (world.state(23), world.attached) == ("refused", [])


def test_a_window_for_a_process_that_is_gone_or_only_watched_is_not_opened(world):
    """`watch` never attaches."""
    gone, watched = ProcessId(101, 7), world.fork(23, "watched")
    world.pass_time()
    world.wanted = [Open(gone, EXACT, 5.0, "grows"), Open(watched, EXACT, 5.0, "grows")]
    world.tick()
    assert (world.states(), world.attached) == ({23: "watched"}, [])


# -- whatever happens ------------------------------------------------------------------------------------

_PIDS = st.integers(2, 6)
_COMMS = st.sampled_from(["sh", "traced", "traced-too", "off", "watched"])
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["fork", "exec"]), _PIDS, _COMMS, st.booleans()),
        st.tuples(st.just("exit"), _PIDS, st.just(""), st.booleans()),
        st.tuples(st.just("gap"), st.just(0), st.just(""), st.just(True)),
        st.tuples(st.just("time"), st.integers(0, 60 * MS), st.just(""), st.just(True)),
        st.tuples(st.just("stray"), _PIDS, st.just(""), st.just(True)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(_STEPS, st.lists(st.sampled_from([FORK, EXEC, EXIT, CHANGED]), min_size=40, max_size=40))
def test_any_events_end_in_the_state_that_a_rescan_gives(steps, strays):
    """Told, missed or misleading: after a gap was noticed all is as if the daemon had just been started."""
    world = World()
    for (step, number, comm, told), stray in zip(steps, strays, strict=False):
        if step == "time":
            world.pass_time(number)
        elif step == "gap":
            world.tell(GAP)
        elif step == "stray":
            world.tell(stray, number)
        elif step == "fork" and number not in world.processes:
            world.fork(number, comm, told=told)
        elif step == "exec" and number in world.processes:
            world.exec(number, comm, told=told)
        elif step == "exit" and number in world.processes:
            world.exit(number, told=told)
    world.pass_time()
    world.tell(GAP)
    world.pass_time()

    fresh = World()
    fresh.processes = world.processes
    fresh.supervisor.rescan(0)
    fresh.pass_time()
    assert world.states() == fresh.states()
    assert world.traced == fresh.traced
    assert world.watched == fresh.watched


@settings(max_examples=100, deadline=None)
@given(_STEPS)
def test_events_alone_give_the_same(steps):
    """As long as none is lost."""
    world = World()
    for step, number, comm, _ in steps:
        if step == "time":
            world.pass_time(number)
        elif step == "fork" and number not in world.processes:
            world.fork(number, comm)
        elif step == "exec" and number in world.processes:
            world.exec(number, comm)
        elif step == "exit" and number in world.processes:
            world.exit(number)
    world.pass_time()
    expected = {
        "sh": "watched",
        "watched": "watched",
        "off": "off",
        "traced": "traced",
        "traced-too": "traced",
    }
    assert world.states() == {pid: expected[stat.comm] for pid, stat in world.processes.items()}
    traced = {pid for pid, state in world.states().items() if state == SupervisionState.TRACED}
    assert set(world.traced) == traced
