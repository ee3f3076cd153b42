"""Everything that the documents name exists: files, headings, make targets, commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench import quotes

from bpfleakd import errors
from bpfleakd.api import parameters
from bpfleakd.cli import commands

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "bench/**/*.md", "bpf/*.md", "deploy/**/*.md", "docs/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
# As code or as a command of a session, not as a word: "what they make of it".
_MAKE = re.compile(r"(?:`|^ *[#$] )make ([a-z][a-z-]*)", re.MULTILINE)
_CONTROL = re.compile(r"\bbpfleakctl ([a-z][a-z-]*)")


def anchors(document: Path) -> set[str]:
    """The headings of a document as GitHub names them in links."""
    headings = re.findall(r"^#+ +(.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path):
    """To a file of this repository, and to a heading in it."""
    for link in _LINK.findall(document.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, heading = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        assert target.exists(), f"{link} in {document}"
        assert not heading or heading in anchors(target), f"{link} in {document}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_exist(document: Path):
    """The targets of make and the commands of bpfleakctl that it tells one to use."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = {path.stem for path in Path(commands.__path__[0]).glob("[a-z]*.py")}
    text = document.read_text()
    assert set(_MAKE.findall(text)) <= targets
    assert set(_CONTROL.findall(text)) <= known


def test_there_is_something_to_check():
    """The patterns find what README has."""
    text = (ROOT / "README.md").read_text()
    assert len(DOCUMENTS) > 9
    assert {"setup", "demo"} <= set(_MAKE.findall(text))
    assert {"attach", "top"} <= set(_CONTROL.findall(text))
    assert "docs/json.md" in _LINK.findall(text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_figures_are_those_of_the_benchmarks(document: Path):
    """Every quotation is what bench/results has: `python -m bench.quotes` writes them again."""
    for name, text in quotes.QUOTATION.findall(document.read_text()):
        assert text == quotes.quoted(name), f"{name} in {document}"


@pytest.mark.parametrize("document", ["README.md", "docs/cost.md", "docs/troubleshooting.md"])
def test_prices_are_quoted(document: str):
    """No time of a call and no memory of the daemon is typed in where people look for them."""
    text = quotes.QUOTATION.sub("", (ROOT / document).read_text())
    assert not re.findall(r"[0-9.,]+ (?:µs|ns|MB)\b", text)


def test_readme_is_short():
    """1,200 words: what it is, how to try it, where to read on."""
    assert len((ROOT / "README.md").read_text().split()) <= 1200


def test_every_error_has_its_exit_code_in_the_documents():
    """docs/exit-codes.md: each code of the API stands in the row of its exit code."""
    rows = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", (ROOT / "docs/exit-codes.md").read_text(), re.MULTILINE)
    documented = {code: int(number) for number, codes in rows for code in re.findall(r"`([a-z-]+)`", codes)}
    # One is defined where requests are read.
    assert parameters.BadRequest in errors.BpfleakdError.__subclasses__()
    assert documented == {error.code: error.exit_code for error in _errors(errors.BpfleakdError)}


def _errors(root: type[errors.BpfleakdError]) -> list[type[errors.BpfleakdError]]:
    """The tree; classes of a test are not part of it."""
    children = [child for child in root.__subclasses__() if child.__module__.startswith("bpfleakd.")]
    return [root, *(each for child in children for each in _errors(child))]


# The programs of the tutorials, by their file names.
_SOURCES = {
    path.name: path
    for path in (
        ROOT / "examples/leaky-service/order_service.cpp",
        ROOT / "examples/python-shop/shop.py",
        ROOT / "tests/workloads/go/service/main.go",
        ROOT / "tests/workloads/runtimes/JavaLeaks.java",
        ROOT / "tests/workloads/runtimes/node/leaks.js",
    )
}
_PLACE = re.compile(rf"^(.*?)\b({'|'.join(map(re.escape, _SOURCES))}):(\d+)\b", re.MULTILINE)
# A function of the tutorials' programs is no longer than this.
_FUNCTION_LINES = 20


@pytest.mark.parametrize("tutorial", sorted(ROOT.glob("docs/tutorial-*.md")), ids=lambda path: path.stem)
def test_lines_in_tutorials_belong_to_the_functions_they_name(tutorial: Path):
    """A change of a program moves its lines; a reader who looks one up has to find that function."""
    for words, name, number in _PLACE.findall(tutorial.read_text()):
        functions = "|".join(re.findall(r"[A-Za-z_]\w{3,}", words))
        lines = _SOURCES[name].read_text().splitlines()[: int(number)][-_FUNCTION_LINES:]
        begins = re.search(rf"\b(?:{functions})(?:\(|\[|: \()", "\n".join(lines))
        assert begins or "(anonymous)" in words or "<module>" in words, f"{words.strip()} {name}:{number}"
