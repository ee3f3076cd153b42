"""Fields of /proc/PID/status, of processes that choose their names to be taken for fields."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bpfleakd.process.proc_text import (
    catches_signal,
    kilobyte_field,
    kilobyte_fields,
    read_text,
    status_fields,
)

STATUS = (
    "Name:\t{}\nTgid:\t23\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t23\t7\n"
    "VmRSS:\t    8 kB\nSigCgt:\t0000000000000200\n"
)
# Those at which str.splitlines or a text file end a line, and the kernel does not escape.
ENDS = ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028"]


def with_name(directory: Path, name: str) -> Path:
    (directory / "status").write_bytes(STATUS.format(name).encode())
    return directory


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("field", ["SigCgt:\tffff", "NSpid:\tx", "Uid:\t0\t0", "VmRSS: 9 kB", "Tgid:x"])
def test_a_name_is_no_field(tmp_path, end, field):
    """Whatever character it has in front, or whatever else ends there."""
    directory = with_name(tmp_path, end + field)
    fields = status_fields(directory)
    assert (fields["Tgid"], fields["Uid"].split()[1], fields["NSpid"].split()[-1]) == ("23", "1000", "7")
    text = read_text(directory / "status")
    assert kilobyte_fields(text)["VmRSS"] == kilobyte_field(text, "VmRSS") == 8 << 10
    assert catches_signal(directory, signal.SIGUSR1)
    assert not catches_signal(directory, signal.SIGQUIT)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=15))
def test_any_name_leaves_the_fields_as_they_are(tmp_path, name):
    """The kernel escapes newlines in it."""
    fields = status_fields(with_name(tmp_path, name))
    assert list(fields.items())[-6:-1] == [
        ("Tgid", "23"),
        ("Uid", "1000\t1000\t1000\t1000"),
        ("NSpid", "23\t7"),
        ("VmRSS", "8 kB"),
        ("SigCgt", "0000000000000200"),
    ]


@pytest.mark.parametrize("name", ["MemTotal", "MemAvailable", "Free", "Name", "None", "Huge", ""])
def test_one_field_is_that_of_all(name):
    text = "MemTotal:     24 kB\nMemFree:   5 kB\nMemAvailable:   17 kB\nName:\tx\nNone:\nHuge: 3\n"
    assert kilobyte_field(text, name) == kilobyte_fields(text).get(name)


def test_a_file_longer_than_one_reading_is_read_whole(tmp_path):
    (tmp_path / "long").write_text("x" * 200_000)
    assert len(read_text(tmp_path / "long")) == 200_000
    assert read_text(tmp_path / "missing") == read_text(tmp_path) == ""
