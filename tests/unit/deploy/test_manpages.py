"""The man pages have what --help and the configuration have, and are well-formed."""

from __future__ import annotations

import argparse
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bpfleakd.cli import bpfleakctl, bpfleakd
from bpfleakd.config import Config

ROOT = Path(__file__).parents[3]
REQUESTS = {".TH", ".SH", ".SS", ".TP", ".PP", ".EX", ".EE", ".RS", ".RE"}


def the_pages() -> dict[str, str]:
    """The output of scripts/manpages.py."""
    spec = importlib.util.spec_from_file_location("manpages", ROOT / "scripts/manpages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


PAGES = the_pages()


def plain(page: str) -> str:
    """The text of a page without roff's escapes."""
    return PAGES[page].replace("\\-", "-").replace("\\&", "").replace("\\fB", "").replace("\\fR", "")


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Commands and options of a parser, and of those below it."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield name
                yield from options(below)


def keys(kind: msgspec.inspect.Type, prefix: str = "") -> Iterator[str]:
    """The dotted keys of the configuration, down to lists."""
    assert isinstance(kind, msgspec.inspect.StructType)
    for field in kind.fields:
        name = f"{prefix}{field.encode_name}"
        yield name
        inner = field.type.type if isinstance(field.type, msgspec.inspect.Metadata) else field.type
        if isinstance(inner, msgspec.inspect.StructType):
            yield from keys(inner, f"{name}.")


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_text_or_known_requests(page):
    """No text is mistaken for a request of roff."""
    lines = PAGES[page].splitlines()
    assert lines[0].startswith(".TH ")
    assert {line.split()[0] for line in lines if line[:1] in (".", "'")} <= REQUESTS
    assert lines.count(".EX") == lines.count(".EE")


def test_every_command_and_option_is_there():
    """For both commands."""
    assert set(options(bpfleakctl.make_parser())) <= set(re.findall(r"[\w-]+", plain("bpfleakctl.1")))
    assert set(options(bpfleakd.make_parser())) <= set(re.findall(r"[\w-]+", plain("bpfleakd.8")))


def test_every_key_of_the_configuration_is_there():
    """With its section."""
    entries = set(re.findall(r"^([a-z_.]+)(?: \(default|$)", plain("bpfleakd.yaml.5"), re.MULTILINE))
    assert set(keys(msgspec.inspect.type_info(Config))) <= entries
