"""Which package may import which: the table, and the test that reads all imports.

A package sees those that its row names, itself, and the leaves. A row that names less is better: what it
does not allow belongs into another package, or the thing imported does.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "bpfleakd"

# Root modules that every package may import; each may import those above it here.
LEAVES = (
    "__version__",
    "errors",
    "units",
    "log_pause",
    "printable",
    "paths",
    "pid_namespace",
    "private_directory",
    "ranges",
    "threads",
    "turns",
)

# In a package, without those of the packages in it.
MODULES_MAX = 25

CORE = {"model", "table", "analysis", "verdicts"}
INPUTS = {"kernel", "process", "elf", "unwind", "symbols", "runtimes", "sandbox"}

MAY_IMPORT: dict[str, set[str]] = {
    # The core is pure: values in, values out.
    "model": set(),
    "table": {"model"},
    "analysis": {"model", "table"},
    "verdicts": {"model", "table", "analysis"},
    "reachability": {"model"},
    "suppressions": {"analysis"},
    "lean_imports": set(),
    # Inputs know the formats that they read, and nothing of the meaning.
    "sandbox": {"model"},
    "elf": {"model", "sandbox"},
    "unwind": {"model", "sandbox", "elf"},
    "process": {"model", "elf"},
    "symbols": {"model", "sandbox", "elf", "unwind", "process"},
    "kernel": {"model", "sandbox", "elf", "unwind", "lean_imports"},
    "runtimes": {"model", "sandbox", "elf", "unwind", "process", "symbols"},
    # Outputs: a report in, bytes out.
    "export": {*CORE, "web"},
    "state": {"model"},
    "web": set(),
    # Tracing, queries, supervision. The last two do not know each other.
    "tracing": {*CORE, *INPUTS},
    "queries": {*CORE, *INPUTS, "reachability", "tracing"},
    "supervision": {*CORE, *INPUTS, "tracing"},
    # The edges.
    "config": {"model", "analysis", "process"},
    "config_file": {"config"},
    "api": {"model", "export", "web"},
    "daemon": {
        *(*CORE, *INPUTS, "suppressions", "export", "state", "tracing", "queries", "supervision"),
        *("config", "config_file", "api", "lean_imports"),
    },
    "cli": {"model", "analysis", "verdicts", "export", "api"},
}

# Single modules that may see more than their package, each with the reason. One that is not needed fails.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("cli.bpfleakd", "daemon"): "the daemon's own command starts it",
    ("cli.bpfleakd", "config"): "and reads its configuration",
    ("cli.bpfleakd", "config_file"): "and reads its configuration",
    ("cli.bpfleakd", "kernel"): "and brings the loader's child on its way before it imports the rest",
    ("runtimes.cpython.heap_reading", "kernel"): "a child is started as those that compile and scan are",
    ("runtimes.cpython.heap_worker", "kernel"): "and answers as they do",
    ("cli.commands.doctor", "daemon"): "it examines the machine, also where no daemon runs",
}

# Which packages may import a third party; others may not. "": all.
HOMES: dict[str, str] = {
    "bcc": "kernel.loader",
    "capstone": "kernel.probes.prologue",
    "msgspec": "",
    "numpy": "",
    "prometheus_client": "export.client",
    "pyroute2": "kernel.process_events",
    "rich": "cli",
    "h11": "api",
    "structlog": "",
    "yaml": "config_file",
}


# What starts threads and processes without `threads.usual_priority`, each with the reason.
STARTERS: dict[str, str] = {
    "cli": "another process than the daemon",
    "daemon.cleanup": "another process than the daemon",
    "daemon.doctor": "another process than the daemon",
    "daemon.worker": "the loop starts the worker's thread",
    "kernel.children.child_series": "in a child",
    "kernel.loader": "before there are ticks",
    "kernel.mounts": "before there are ticks",
    "kernel.probes.cost": "in a child",
    "kernel.trial": "before there are ticks",
    "sandbox.zygote": "in a child",
    "supervision.process_event_feed": "before there are ticks",
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package, by its name without `bpfleakd.`."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), ast.parse(path.read_text())


def imports(tree: ast.Module) -> Iterator[str]:
    """The imports anywhere in a module, as dotted names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "a relative import"
            assert not node.level, "a relative import"
            is_root = node.module == "bpfleakd"
            yield from (f"{node.module}.{alias.name}" if is_root else node.module for alias in node.names)


def package_of(module: str) -> str:
    return module.partition(".")[0]


def problems(name: str, imported: str, used: set[tuple[str, str]]) -> Iterator[str]:
    """Violations by one import of the module `name`; adds the exceptions that it needs to `used`."""
    package, (root, _, rest) = package_of(name), imported.partition(".")
    if root != "bpfleakd":
        if root not in sys.stdlib_module_names and not name.startswith(HOMES.get(root, "nobody")):
            yield f"{name} imports {root}, which is at home in {HOMES.get(root, 'no module')}"
        is_pure = package in LEAVES or (package == "model" and root != "msgspec")
        if is_pure and root not in sys.stdlib_module_names:
            yield f"{name} imports {root}, but only the standard library is for it"
        return
    target = package_of(rest)
    if target == package or not package:
        return
    if package in LEAVES:
        allowed = target in LEAVES[: LEAVES.index(package)]
    elif package == "model":
        allowed = target == "errors"
    else:
        allowed = target in LEAVES or target in MAY_IMPORT[package]
    if not allowed and (name, target) in EXCEPTIONS:
        used.add((name, target))
    elif not allowed:
        yield f"{name} imports bpfleakd.{rest}"


def test_every_package_has_its_row():
    """A new package or root module states what it may import."""
    found = {package_of(name) for name, _ in modules()} - {""}
    assert found == {*MAY_IMPORT, *LEAVES} - {"__version__"}


def test_a_package_can_be_overseen():
    """A package that has grown larger has more than one subject: divide it."""
    sizes = Counter(path.parent for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
    assert {package for package, modules in sizes.items() if modules > MODULES_MAX} == set()


def test_imports_keep_to_the_table():
    """All imports, also those in functions and for types only; and no exception is left over."""
    used: set[tuple[str, str]] = set()
    found = [line for name, tree in modules() for one in imports(tree) for line in problems(name, one, used)]
    assert found == []
    assert set(EXCEPTIONS) - used == set(), "exceptions that nothing needs"


def hidden_names(tree: ast.Module) -> list[str]:
    """Names with an underscore that a module takes from another; the underscore says what is private."""
    taken = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    names = (alias.name for node in taken for alias in node.names)
    return [name for name in names if name.startswith("_") and not name.endswith("__")]


def test_what_is_private_stays_in_its_module():
    """The underscore says what is private, so no module needs `__all__`."""
    assert {name: hidden for name, tree in modules() if (hidden := hidden_names(tree))} == {}


def test_a_private_import_is_found():
    """The test can fail."""
    assert hidden_names(ast.parse("from bpfleakd.model.site import _sum, Site")) == ["_sum"]


def starts(tree: ast.Module) -> bool:
    """Whether a module starts threads or processes, at the priority of the thread that runs it."""
    calls = {ast.unparse(node.func).split(".")[-1] for node in ast.walk(tree) if isinstance(node, ast.Call)}
    runs = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    is_starting = calls & {"Thread", "ThreadPoolExecutor", "Popen", "fork"} or "subprocess.run" in runs
    # The call alone does nothing.
    blocks = {
        ast.unparse(item.context_expr)
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        for item in node.items
    }
    return bool(is_starting) and "usual_priority()" not in blocks


def test_nothing_starts_at_idle_priority():
    """A thread that begins in an idle tick would be idle for ever."""
    found = {name for name, tree in modules() if starts(tree)}
    known = {name: STARTERS.get(name) or STARTERS.get(name.split(".")[0]) for name in found}
    assert {name for name, reason in known.items() if not reason} == set()
    assert {name for name in STARTERS if not any(f"{one}.".startswith(f"{name}.") for one in found)} == set()


@pytest.mark.parametrize("call", ["threading.Thread(target=f)", "subprocess.run(['ls'])", "os.fork()"])
def test_a_start_is_found(call):
    """The test can fail."""
    assert starts(ast.parse(call))
    assert starts(ast.parse(f"usual_priority(); {call}"))
    assert not starts(ast.parse(f"with usual_priority(): {call}"))


def test_the_daemon_waits_for_any_descriptor():
    """select(2) takes none from 1024 on, and a daemon that traces many processes has more."""
    callers = {name for name, tree in modules() if "select.select" in ast.unparse(tree)}
    assert {name for name in callers if package_of(name) != "cli"} == set()


def test_the_table_has_no_circle():
    """A package that sees another is not seen by it, over any number of steps."""

    def seen_from(package: str, above: tuple[str, ...] = ()) -> None:
        assert package not in above, " -> ".join((*above, package))
        for other in MAY_IMPORT[package]:
            seen_from(other, (*above, package))

    for package in MAY_IMPORT:
        seen_from(package)


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("table.site_table", "bpfleakd.verdicts.trend"),
        ("queries.blocks", "bpfleakd.supervision.overhead_guard"),
        ("supervision.guard", "bpfleakd.queries.blocks"),
        ("model.site", "bpfleakd.printable"),
        ("model.site", "numpy"),
        ("errors", "bpfleakd.units"),
        ("kernel.maps", "bcc"),
        ("analysis.trend", "scipy"),
        ("symbols.libiberty", "bpfleakd.daemon.logs"),
    ],
)
def test_a_wrong_import_is_found(module, imported):
    """The test can fail."""
    assert list(problems(module, imported, set()))
