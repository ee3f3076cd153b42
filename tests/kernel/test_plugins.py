"""Plugins that are loaded, leak and are unloaded: a leak has its own plugin's name, whichever plugin has the
addresses later.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .building import build_directory
from .truth import allocating_function, by_function
from .waiting import wait_until
from .workloads import Workload, in_a_root_of_its_own

VISIT_CSV, VISIT_XML, LOAD_CSV, LOAD_XML, UNLOAD, MOVING_VISITS = range(1, 7)
EACH, VISITS = 16, 20


@pytest.fixture
def host():
    """A running host of plugins, made with other paths for them if need be."""
    started = []

    def start(csv: str | Path = "", xml: str | Path = "") -> Workload:
        directory = build_directory("plugins")
        started.append(
            Workload([directory / "host", csv or directory / "csv.so", xml or directory / "xml.so"])
        )
        return started[-1]

    yield start
    for program in started:
        program.kill()


def _counts(tracer, pid: int) -> dict[str, int]:
    """How many live blocks each plugin's function has, once all is named."""
    sites = by_function(tracer.top_after_tick(pid))
    return {name: site["live_count"] for name, site in sites.items() if name in ("csv_export", "xml_import")}


def _expected(ledger: dict) -> dict[str, int]:
    return {name: site["live_count"] for name, site in ledger["sites"].items()}


@pytest.mark.parametrize("walker", ["may_goto", "tail_calls"])
def test_visits_at_one_address(daemon, host, walker) -> None:
    """Each is shorter than a tick. Their stacks differ in nothing but the files, also after a restart."""
    program = host()
    tracer = daemon(walker=walker)
    tracer.attach_with_tables(program.pid)

    for step in (VISIT_CSV, VISIT_XML, VISIT_CSV, VISIT_XML):
        ledger = program.step(step)
    wait_until(lambda: _counts(tracer, program.pid) == _expected(ledger))
    tracer.kill()
    program.step(VISIT_XML)
    ledger = program.step(VISIT_CSV)
    tracer.start()

    assert ledger["csv_export"] == ledger["xml_import"], "the plugins were at different addresses"
    wait_until(lambda: _counts(tracer, program.pid) == _expected(ledger))
    assert tracer.process(program.pid)["adopted_count"] == 1


def test_plugins_that_stay_at_one_address(tracer, host) -> None:
    """Each is looked at while it is there."""
    program = host()
    tracer.attach_with_tables(program.pid)

    for step in (LOAD_CSV, UNLOAD, LOAD_XML, UNLOAD, LOAD_CSV, UNLOAD, LOAD_XML):
        ledger = program.step(step)
        tracer.wait_for_ticks(2)

    assert ledger["csv_export"] == ledger["xml_import"], "the plugins were at different addresses"
    wait_until(lambda: _counts(tracer, program.pid) == _expected(ledger))


def test_visits_at_moving_addresses_are_one_site(tracer, host) -> None:
    """The same function of the same file, 20 times elsewhere."""
    program = host()
    tracer.attach_with_tables(program.pid)

    ledger = program.step(MOVING_VISITS)

    def is_one() -> bool:
        sites = [site for site in tracer.top_after_tick(program.pid)["sites"] if site["live_count"]]
        found = [site["live_count"] for site in sites if allocating_function(site) == "xml_import"]
        return found == [EACH * VISITS]

    wait_until(is_one)
    assert _expected(ledger)["xml_import"] == EACH * VISITS


def test_a_plugin_whose_file_is_gone_has_its_name(daemon, host, tmp_path: Path) -> None:
    """It was removed before anybody could look for the names of its functions."""
    plugin = build_directory("plugins") / "csv.so"
    csv, new = tmp_path / "shortlived.so", tmp_path / "new.so"
    shutil.copy(plugin, csv)
    program = host(csv)
    tracer = daemon()
    tracer.attach_with_tables(program.pid)
    tracer.kill()

    # Another file than the one that the host has loaded at its start.
    shutil.copy(plugin, new)
    new.rename(csv)
    program.step(VISIT_CSV)
    csv.unlink()
    tracer.start()

    (site,) = (one for one in tracer.top_after_tick(program.pid)["sites"] if one["live_count"] == EACH)
    frames = [(frame["module"], frame["offset"]) for frame in site["stack"] if not frame["function"]]
    assert [module for module, _offset in frames] == ["[unloaded shortlived.so]"] * 2
    assert all(0 < offset < plugin.stat().st_size for _module, offset in frames)


def test_plugins_in_another_root_directory_have_their_names(tracer, tmp_path: Path) -> None:
    """In a mount namespace whose root is not that of the process: the path is looked up below the latter."""
    directory = build_directory("plugins")
    plugins = directory / "csv.so", directory / "xml.so"
    program = Workload(in_a_root_of_its_own(tmp_path, directory / "host", plugins, plugins))
    try:
        # The whole path up to the root of the mount namespace, if the tests run in a chroot themselves.
        assert str(Path(f"/proc/{program.pid}/root").readlink()).endswith(str(tmp_path))
        tracer.attach_with_tables(program.pid)

        for step in (VISIT_CSV, VISIT_XML, VISIT_CSV):
            ledger = program.step(step)

        assert ledger["csv_export"] == ledger["xml_import"], "the plugins were at different addresses"
        wait_until(lambda: _counts(tracer, program.pid) == _expected(ledger))
    finally:
        program.kill()
