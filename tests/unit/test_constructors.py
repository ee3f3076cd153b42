"""No constructor takes so many parameters that the object's purpose is unclear."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "bpfleakd"
PARAMETERS_MAX = 7
PLAIN = {"int", "float", "bool", "str", "bytes", "memoryview", "None", "Row", "Flags"}  # the last: arrays


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}", node


def parameters(node: ast.ClassDef) -> int:
    """How many parameters the constructor of a class takes; of a record (below) none count."""
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            arguments = member.args
            return len((*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)) - 1
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list) or is_record(node):
        return 0
    fields = (member for member in node.body if isinstance(member, ast.AnnAssign))
    return sum("init=False" not in ast.unparse(member) for member in fields)


def is_record(node: ast.ClassDef) -> bool:
    """A row of values, which is built by naming each: it has no methods, or no fields but plain ones."""
    plain = {"property", "classmethod", "staticmethod"}
    texts = (ast.unparse(member.annotation) for member in node.body if isinstance(member, ast.AnnAssign))
    if all(set(text.split(" | ")) <= PLAIN for text in texts):
        return True
    return all(
        plain & {ast.unparse(decorator) for decorator in member.decorator_list}
        for member in node.body
        if isinstance(member, ast.FunctionDef)
    )


def test_no_constructor_takes_more_than_seven_parameters():
    """Parameters that belong together are passed as one named object."""
    found = {name: count for name, node in classes() if (count := parameters(node)) > PARAMETERS_MAX}
    assert found == {}


def test_too_many_would_be_found():
    """For a class with a constructor, and a dataclass with methods."""
    names = ", ".join("abcdefgh")
    fields = "\n".join(f"    {name}: Maps" for name in "abcdefgh")
    texts = (
        f"class A:\n    def __init__(self, {names}): pass",
        f"@dataclass(frozen=True)\nclass B:\n{fields}\n    def work(self): pass",
        f"@dataclass\nclass C:\n{fields}\n    @property\n    def sum(self): pass",
    )
    nodes = [ast.parse(text).body[0] for text in texts]
    assert [parameters(node) for node in nodes if isinstance(node, ast.ClassDef)] == [8, 8, 0]
