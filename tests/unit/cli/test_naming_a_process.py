"""PID and --pid mean the same for every command; mistyped words get a suggestion."""

from __future__ import annotations

import pytest

from bpfleakd.cli.bpfleakctl import main, make_parser

WITH_PROCESS = (
    "attach",
    "detach",
    "ps",
    "policy",
    "top",
    "report",
    "scan",
    "types",
    "reports",
    "maps",
    "history",
)


@pytest.mark.parametrize("command", WITH_PROCESS)
def test_a_process_is_named_in_two_ways(command):
    """By its place, or by the option."""
    parser = make_parser()
    assert parser.parse_args([command, "4711"]).pid == 4711
    assert parser.parse_args([command, "--pid", "4711"]).pid == 4711
    assert parser.parse_args([command, "4711", "--pid", "4711"]).pid == 4711


def test_diff_takes_a_process_alone():
    """With two arguments, both are reports."""
    assert make_parser().parse_args(["diff", "--pid", "4711"]).pid == 4711
    assert make_parser().parse_args(["diff", "4711"]).before == "4711"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["attach"], "name the process"),
        (["attach", "1", "--pid", "2"], "name one process"),
        (["atach", "1"], "did you mean attach?"),
        (["xyzzy"], "the commands are attach, detach"),
        (["top", "--limt", "3"], "did you mean --limit?"),
        (["top", "1", "2"], "bpfleakctl top: error: too many arguments: 2"),
        (["ps", "-x"], "bpfleakctl ps: error: there is no option -x"),
        (["scan", "1", "--limit", "4"], "--limit needs --blocks"),
        (["export", "1", "-o", "x.png"], "x.png names no format: use .html, .svg"),
        (["export", "1", "-o", "x.pb.gz", "--value", "growth"], "--value makes no sense for pprof"),
        (["reports", "--show", "1", "--limit", "3"], "--show names one report"),
        (["top", "--once", "--interval", "3"], "--interval is for the screen"),
        (["ps", "--json", "--watch"], "are for the table, not for --json"),
        (["diff", "before.json"], "to compare reports, name two"),
    ],
)
def test_an_error_has_a_hint(arguments, words, capsys):
    """Before any request to a daemon; the exit code is that of a wrong command line."""
    with pytest.raises(SystemExit) as ended:
        main(["--socket", "/nowhere", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
