"""The help of each command."""

from __future__ import annotations

import shlex

import pytest

from bpfleakd.cli.bpfleakctl import make_parser
from bpfleakd.cli.examples import EXAMPLES


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line, _words in lines])
def test_every_example_is_understood(line):
    """By the parser itself."""
    program, *arguments = shlex.split(line)
    assert program == "bpfleakctl"
    assert make_parser().parse_args(arguments).run


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_help_has_a_description_and_examples(name, capsys, monkeypatch):
    """Within 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        make_parser().parse_args([name, "--help"])
    words = capsys.readouterr().out
    assert f"  bpfleakctl {name}" in words.partition("examples:")[2]
    assert max(map(len, words.splitlines())) <= 80
    purpose = words.split("\n\n")[1]
    assert purpose.endswith(".")
