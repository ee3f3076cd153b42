"""Samples the allocators of retained objects in a Java heap, with the JVM's Flight Recorder, on request.

It starts a recording of one kind of event (jdk.OldObjectSample) over the attach socket. The JVM samples
allocations for a while, with their stacks. At the end it stops the process to search for references to the
live samples, and writes a file. An unprivileged helper reads that.

The JVM samples an allocation when a thread takes a new buffer to allocate from, so that a program which
allocates slowly gives few. Therefore the samples are counted first, without that search and while the process
runs on; if there are few, the recording goes on.

A recording that we cannot end any more is ended by the JVM.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Sequence

from bpfleakd.model.runtimes.survivors import longest_s
from bpfleakd.process.process import ProcessInfo
from bpfleakd.runtimes.jvm.attach import AttachError, JavaAttach
from bpfleakd.runtimes.jvm.recording_jobs import OLD_OBJECTS_JOB, OldObjects
from bpfleakd.runtimes.jvm.written_file import file_written
from bpfleakd.runtimes.runtime import SampledLine, SampledSurvivor, SampledSurvivors
from bpfleakd.sandbox.channel import HelperFailed
from bpfleakd.sandbox.helpers import Helpers

# Garbage included. With a tenth of that alive, the largest part of a leak has a name.
_ENOUGH = 64
# The recorder's first start takes seconds of a busy machine.
_START_TIMEOUT_S = 60.0
# The JVM may search for a minute; the answer's client waits for the limit of that search.
_SEARCH_MAX_S = 30
_STOP_TIMEOUT_S = 60.0
_FORGOTTEN_AFTER_S = 120
_READ_LIMIT_S = 30.0
_FILE_MAX_BYTES = 128 << 20
_ANSWER_MAX_BYTES = 16 << 20
# Measured: 1.8 s for 179 MB on a busy machine.
_S_PER_BYTE = 1.0 / (128 << 20)
_S_AT_LEAST = 0.1


class JavaSurvivors:
    """Samples one process. `heap_bytes` is the size of its heap, None if unknown."""

    def __init__(
        self,
        helpers: Helpers,
        process: ProcessInfo,
        attach: JavaAttach,
        heap_bytes: Callable[[], int | None],
    ) -> None:
        self._helpers = helpers
        self._process = process
        self._attach = attach
        self._heap_bytes = heap_bytes

    def stops_s(self) -> float | None:
        """How long the search will stop the process, in seconds, approximately; None if unknown."""
        heap_bytes = self._heap_bytes()
        return None if heap_bytes is None else max(_S_AT_LEAST, heap_bytes * _S_PER_BYTE)

    def sample(self, seconds: float) -> SampledSurvivors:
        """Sample for so long, or up to `longest_s` until there is enough. Raises AttachError."""
        name = f"bpfleakd-{os.urandom(8).hex()}"
        self._ask(f"JFR.start name={name} {_settings(seconds)}", "Started recording", _START_TIMEOUT_S)
        began_s = time.monotonic()
        try:
            until_s = began_s + longest_s(seconds)
            for turn in itertools.count():
                time.sleep(seconds)
                if time.monotonic() + seconds > until_s or self._has_enough(name, turn):
                    break
            sampled_s = time.monotonic() - began_s
            found = self._written(f"JFR.stop name={name}", f"{name}.jfr", "Stopped recording")
        except AttachError:
            with contextlib.suppress(AttachError):
                self._attach.run(f"JFR.stop name={name}", _STOP_TIMEOUT_S)
            raise
        return SampledSurvivors(_survivors(found), found.samples, sampled_s)

    def _has_enough(self, name: str, turn: int) -> bool:
        """Whether a recording has so many samples that they tell something, whatever holds them."""
        command = f"JFR.dump name={name} path-to-gc-roots=false"
        return self._written(command, f"{name}-{turn}.jfr", "Dumped recording").samples >= _ENOUGH

    def _written(self, command: str, file: str, expected: str) -> OldObjects:
        """What the JVM writes to a file by a command. Raises AttachError."""

        def write() -> None:
            self._ask(f"{command} filename=/tmp/{file}", expected, _STOP_TIMEOUT_S)

        with file_written(self._process, file, write) as opened:
            return self._read(opened())

    def _ask(self, command: str, expected: str, timeout_s: float) -> None:
        """Run a command whose answer is a sentence. Raises AttachError."""
        answer = self._attach.run(command, timeout_s)
        if expected not in answer:
            lines = answer.strip().splitlines()
            raise AttachError(f"it refuses to record: {lines[-1][:200] if lines else 'no answer'}")

    def _read(self, file: int) -> OldObjects:
        try:
            if os.fstat(file).st_size > _FILE_MAX_BYTES:
                raise AttachError(f"its recording is longer than {_FILE_MAX_BYTES >> 20} MiB")
            return self._helpers.answer(
                OLD_OBJECTS_JOB,
                None,
                [file],
                OldObjects,
                limit_s=_READ_LIMIT_S,
                bytes_max=_ANSWER_MAX_BYTES,
            )
        except HelperFailed as error:
            raise AttachError(f"its recording cannot be read: {error}") from error
        finally:
            os.close(file)


def _settings(seconds: float) -> str:
    return (
        f"settings=none duration={int(longest_s(seconds)) + _FORGOTTEN_AFTER_S}s "
        "+jdk.OldObjectSample#enabled=true +jdk.OldObjectSample#stackTrace=true "
        f"+jdk.OldObjectSample#cutoff={_SEARCH_MAX_S}s"
    )


def _survivors(found: OldObjects) -> Sequence[SampledSurvivor]:
    return tuple(
        SampledSurvivor(
            row.type,
            row.samples,
            tuple(SampledLine(line.method, line.line) for line in row.stack),
            row.held_by,
        )
        for row in found.rows
    )
