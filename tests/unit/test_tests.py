"""The tests wait for conditions, not for the clock."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LONGEST_SLEEP_S = 0.5
# Their difference depends on other load of the machine; CPU time (time.process_time) does not.
WALL_CLOCKS = {"time.monotonic", "time.perf_counter", "time.time"}


def calls_of(tree: ast.AST, names: set[str]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
            yield node


def long_sleeps(tree: ast.AST) -> Iterator[int]:
    """The lines of sleeps for more than LONGEST_SLEEP_S, whatever that is multiplied with."""
    for call in calls_of(tree, {"time.sleep", "asyncio.sleep"}):
        numbers = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant)]
        if any(isinstance(number, (int, float)) and number > LONGEST_SLEEP_S for number in numbers):
            yield call.lineno


def elapsed_names(tree: ast.AST) -> set[str]:
    """Names of variables with wall-clock measurements in a function."""
    return {
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and is_elapsed(node.value, set())
        for target in node.targets
    }


def is_elapsed(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression is a difference to a wall clock's time, or has one of these names."""
    return ast.unparse(node) in names or any(
        isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) and any(calls_of(part, WALL_CLOCKS))
        for part in ast.walk(node)
    )


def speed_assertions(tree: ast.AST) -> Iterator[int]:
    """The lines of assertions of an upper limit on a time. Lower limits are allowed."""
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        names = elapsed_names(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Assert):
                for compare in (part for part in ast.walk(node.test) if isinstance(part, ast.Compare)):
                    sides = [compare.left, *compare.comparators]
                    for left, operator, right in zip(sides, compare.ops, sides[1:], strict=False):
                        small = left if isinstance(operator, (ast.Lt, ast.LtE)) else right
                        if isinstance(operator, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) and is_elapsed(
                            small, names
                        ):
                            yield node.lineno


@pytest.mark.parametrize("check", [long_sleeps, speed_assertions])
def test_no_test_depends_on_the_clock(check):
    """In unit and kernel tests; what something costs is measured by the benchmarks."""
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for kind in ("unit", "kernel")
        for path in sorted((TESTS / kind).rglob("*.py"))
        for line in check(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("check", "text", "is_found"),
    [
        (long_sleeps, "time.sleep(0.6)", True),
        (long_sleeps, "time.sleep(3 * PATIENCE)", True),
        (long_sleeps, "time.sleep(0.5)", False),
        (speed_assertions, "assert time.monotonic() - began < 5", True),
        (speed_assertions, "took_s = time.perf_counter() - began\n    assert took_s < 0.2", True),
        (speed_assertions, "assert 5 > time.monotonic() - began", True),
        (speed_assertions, "assert time.monotonic() - began >= 0.1", False),
        (speed_assertions, "assert time.monotonic() < deadline", False),
        (speed_assertions, "assert time.process_time() - began < 1", False),
    ],
)
def test_what_is_looked_for_is_found(check, text, is_found):
    """The checks can fail."""
    assert bool(list(check(ast.parse(f"def test():\n    {text}")))) is is_found
