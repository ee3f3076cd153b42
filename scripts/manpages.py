"""Writes the man pages from --help, the example configuration and docs/exit-codes.md.

scripts/manpages.py DIRECTORY
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from bpfleakd import __version__
from bpfleakd.cli import bpfleakctl, bpfleakd
from bpfleakd.cli.examples import EXAMPLES

ROOT = Path(__file__).parents[1]
_SUPPRESSED = (argparse.SUPPRESS, None)
_SEE_ALSO = ("bpfleakctl(1)", "bpfleakd(8)", "bpfleakd.yaml(5)")
_FILES = (
    ("/etc/bpfleakd/config.yaml", "the configuration, see bpfleakd.yaml(5); may be absent"),
    ("/run/bpfleakd/bpfleakd.sock", "the daemon's socket, for root and the group bpfleakd"),
    ("/sys/fs/bpf/bpfleakd", "pinned programs and tables; they outlive a killed daemon"),
    ("/var/lib/bpfleakd", "stored reports of processes that exited or were detached"),
    ("/usr/share/doc/bpfleakd", "all documents; start with README.md"),
)
_ENVIRONMENT = (
    ("BPFLEAKD_SOCKET", "the daemon's socket, unless --socket names one"),
    ("NO_COLOR, TERM", "whether and how output is coloured"),
    ("COLUMNS", "the width of tables in a pipe or a file"),
)

# Of 80 columns, man takes 7 as a margin.
_USAGE_WIDTH = 78


def pages() -> dict[str, str]:
    """Return all pages by file name."""
    return {
        "bpfleakctl.1": _control_page(),
        "bpfleakd.8": _daemon_page(),
        "bpfleakd.yaml.5": _configuration_page(),
    }


def _control_page() -> str:
    parser = bpfleakctl.make_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    lines = [*_head("bpfleakctl", 1, parser.description or ""), *_synopsis(parser)]
    lines += [".SH DESCRIPTION", _text(parser.description or "")]
    lines += [_text("Every command names a process as PID or, with the same meaning, --pid N.")]
    lines += [".SH OPTIONS", *_options(parser), ".SH COMMANDS"]
    for action in commands._choices_actions:
        command = commands.choices[action.dest]
        lines += [f".SS {_text(action.dest)}", _text(command.description or ""), *_usage(command)]
        lines += _options(command, besides=parser)
        for example, words in EXAMPLES[action.dest]:
            lines += [".PP", ".EX", _text(f"# {example}"), ".EE", ".RS", _text(words), ".RE"]
    return _page([*lines, *_exit_status(), *_terms("ENVIRONMENT", _ENVIRONMENT), *_end()])


def _daemon_page() -> str:
    parser = bpfleakd.make_parser()
    lines = [*_head("bpfleakd", 8, parser.description or ""), *_synopsis(parser)]
    lines += [".SH DESCRIPTION", _text(parser.description or "")]
    lines += [
        _text(
            "It runs in the foreground until SIGTERM or Ctrl-C, usually under systemd. It watches the memory"
            " of all processes, traces those that grow, and answers bpfleakctl(1) on a unix socket and"
            " Prometheus on a TCP address. SIGHUP reloads the configuration."
        )
    ]
    lines += [".SH OPTIONS", *_options(parser)]
    return _page([*lines, *_exit_status(), *_terms("ENVIRONMENT", _ENVIRONMENT[:1]), *_end()])


def _configuration_page() -> str:
    head, keys = _configuration((ROOT / "deploy/config.example.yaml").read_text())
    lines = [*_head("bpfleakd.yaml", 5, "Configuration of bpfleakd."), ".SH DESCRIPTION", *head]
    return _page([*lines, ".SH KEYS", *keys, *_end()])


def _configuration(example: str) -> tuple[list[str], list[str]]:
    """The example's first comment, and an entry for each key with the comment above it."""
    blocks = example.split("\n\n")
    head = list(_comment(blocks[0].splitlines()))
    keys: list[str] = []
    path: list[str] = []
    comment: list[str] = []
    for line in "\n\n".join(blocks[1:]).splitlines():
        if found := re.fullmatch(r"( *)([a-z_]+):(?: (.*))?", line):
            depth = len(found[1]) // 2
            path = [*path[:depth], found[2]]
            default = f" (default: {_text(found[3])})" if found[3] else ""
            keys += [".TP", f"\\fB{_text('.'.join(path))}\\fR{default}", *_comment(comment)]
            comment = []
        elif line.strip().startswith("#"):
            comment.append(line.strip())
    return head, [*keys, *([".PP", *_comment(comment)] if comment else [])]


def _comment(lines: list[str]) -> Iterator[str]:
    """A comment as text; lines that are indented or look like YAML stay as they are."""
    verbatim = False
    for line in lines:
        text = line.removeprefix("#")
        wants = text.startswith("  ") or bool(re.match(r" (?:- |rules:)", text))
        if wants != verbatim:
            yield ".EX" if wants else ".EE"
            verbatim = wants
        yield _text(text if verbatim else text.strip())
    if verbatim:
        yield ".EE"


def _synopsis(parser: argparse.ArgumentParser) -> list[str]:
    return [".SH SYNOPSIS", *_usage(parser)]


def _usage(parser: argparse.ArgumentParser) -> list[str]:
    """As argparse wraps it for a page of 80 columns, without its first word and the room for that."""
    formatter = parser.formatter_class(parser.prog, width=_USAGE_WIDTH)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    lines = (line[len("usage: ") :] for line in formatter.format_help().rstrip().splitlines())
    return [".PP", ".EX", *map(_text, lines), ".EE"]


def _options(
    parser: argparse.ArgumentParser, besides: argparse.ArgumentParser | None = None
) -> Iterator[str]:
    """An entry for each option, except those that `besides` has too."""
    formatter = parser._get_formatter()
    known = set(besides._option_string_actions) if besides else set()
    for action in parser._actions:
        if known.intersection(action.option_strings):
            continue
        if isinstance(action, argparse._SubParsersAction) or action.help in _SUPPRESSED:
            continue
        yield ".TP"
        yield f"\\fB{_text(formatter._format_action_invocation(action))}\\fR"
        yield _text(formatter._expand_help(action))


def _exit_status() -> Iterator[str]:
    rows = re.findall(r"^\| (\d+) \| (.*?) \| .*$", (ROOT / "docs/exit-codes.md").read_text(), re.MULTILINE)
    yield from _terms("EXIT STATUS", tuple((code, words.replace("`", "")) for code, words in rows))


def _terms(title: str, terms: tuple[tuple[str, str], ...]) -> Iterator[str]:
    yield f".SH {title}"
    for term, words in terms:
        yield from (".TP", f"\\fB{_text(term)}\\fR", _text(words))


def _head(name: str, section: int, purpose: str) -> list[str]:
    purpose = purpose[:1].lower() + purpose[1:].rstrip(".")
    title = f'.TH {name.upper()} {section} "" "bpfleakd {__version__}" "bpfleakd"'
    return [title, ".SH NAME", f"{_text(name)} \\- {_text(purpose)}"]


def _end() -> list[str]:
    also = ", ".join(f"\\fB{_text(page)}\\fR" for page in _SEE_ALSO)
    return [*_terms("FILES", _FILES), ".SH SEE ALSO", also]


def _page(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """Escape text for roff, with option hyphens."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return f"\\&{text}" if text[:1] in (".", "'") else text


def main() -> None:
    """Write the files."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in pages().items():
        (directory / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
