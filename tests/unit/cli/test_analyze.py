"""`bpfleakctl analyze`: files in, verdicts out, no daemon."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from bench import simulated_sites as sites

from bpfleakd.cli.bpfleakctl import main

from ..verdicts.test_stored_history import saved


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "history.json"
    path.write_bytes(msgspec.json.encode(saved(sites.leak(5), sites.cache(50, 20))))
    return path


def test_the_verdicts(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its reason, and the process above."""
    assert main(["analyze", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "shop  observed for 1m30s"
    assert "1 call site leaks" in lines[1]
    assert lines[2].startswith("at this rate the 512 MiB of its control group are used up in 1m")
    assert [line.split()[0] for line in lines[4::2]] == ["leak", "plateau"]
    assert all(" sure: " in line for line in lines[5::2])


def test_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs."""
    assert main(["analyze", str(file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["process_verdict"]["verdict"] == "leak"
    assert [site["verdict"] for site in answer["sites"]] == ["leak", "plateau"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a saved history"),
        ('{"version": 1}', "is not a saved history"),
        (None, "cannot read "),
    ],
)
def test_files_that_are_no_history(
    text: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the file, and states what is wrong with it."""
    path = tmp_path / "history.json"
    if text is not None:
        path.write_text(text)
    assert main(["analyze", str(path)]) == 1
    assert words in capsys.readouterr().err


def test_another_version(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Is not guessed at."""
    file.write_text(file.read_text().replace('"version":1', '"version":2'))
    assert main(["analyze", str(file)]) == 1
    assert "has version 2, not 1" in capsys.readouterr().err
