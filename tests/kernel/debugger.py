"""gdb on a running program, as a second opinion about its stacks. gdb_samples.py is what runs inside it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpfleakd.kernel.abi import MAX_FRAMES

from .machine import cannot_run, need_tool
from .waiting import wait_until

_SCRIPT = Path(__file__).with_name("gdb_samples.py")
_ATTACH_TIMEOUT_S = 60.0

Addresses = tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """What gdb saw at a sample: the program counters, from take_sample outwards. `path` is for messages."""

    addresses: Addresses
    path: str = ""


class Debugger:
    """Attached from `start` on; the program must be made to run into `count` samples then.

    `sampler_gap` is for programs with the preloaded sampler (tests/workloads/stacks/sampler.c).
    """

    def __init__(self, pid: int, count: int, directory: Path, sampler_gap: int = 0) -> None:
        self._output = directory / "gdb.out"
        self._errors = directory / "gdb.err"
        environment = os.environ | {"SAMPLES": str(count), "SAMPLER_GAP": str(sampler_gap)}
        with self._output.open("w") as output, self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [need_tool("gdb"), "-nx", "-batch", "-p", str(pid), "-x", str(_SCRIPT)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment,
            )
        wait_until(self._is_attached, _ATTACH_TIMEOUT_S)

    def samples(self, timeout_s: float) -> list[Addresses]:
        """Wait for all samples; gdb has detached from the program then."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"after {timeout_s} s only {len(self._read())} samples") from None
        assert self._process.returncode == 0, self._errors.read_text()
        return self._read()

    def kill(self) -> None:
        """End gdb if it still runs."""
        self._process.kill()
        self._process.wait()

    def _is_attached(self) -> bool:
        if self._process.poll() is not None:
            errors = self._errors.read_text()
            if "Operation not permitted" in errors:
                cannot_run("gdb may not trace here: needs CAP_SYS_PTRACE, or kernel.yama.ptrace_scope=0")
            raise AssertionError(f"gdb ended with {self._process.returncode}: {errors}")
        return "\nattached\n" in self._output.read_text()

    def _read(self) -> list[Addresses]:
        lines = self._output.read_text().splitlines()
        samples = [line.removeprefix("SAMPLE ") for line in lines if line.startswith("SAMPLE ")]
        return [tuple(json.loads(sample)) for sample in samples]


def expect_same_stacks(report: dict[str, Any], samples: Sequence[Sample]) -> None:
    """Fail unless the daemon saw the same stacks as gdb, each as often, address by address.

    The trap is one byte behind the allocation, so that every frame of gdb's can be compared. What is
    deeper than the daemon keeps is compared as far as it is kept.
    """
    sites = {_addresses(site): site for site in report["sites"] if _is_sample(site)}
    seen = Counter({addresses: site["live_count"] for addresses, site in sites.items()})
    expected = Counter(_kept(sample.addresses) for sample in samples)
    different = expected - seen
    equal = len(samples) - different.total()
    assert not different, (
        f"{equal} of {len(samples)} stacks are equal; the first of the others:\n"
        + _difference(next(s for s in samples if _kept(s.addresses) in different), seen - expected, sites)
    )
    assert seen == expected, f"{(seen - expected).total()} stacks that gdb did not see"
    for addresses, site in sites.items():
        assert site["truncated"] == ("depth" if len(addresses) == MAX_FRAMES - 1 else None)
    print(f"{equal} of {len(samples)} stacks equal, {len(expected)} different ones, {_depths(samples)}")


def _depths(samples: Iterable[Sample]) -> str:
    depths = [len(sample.addresses) for sample in samples]
    return f"{min(depths)} to {max(depths)} frames deep, {sum(depths) / len(depths):.1f} on average"


def _kept(addresses: Addresses) -> Addresses:
    return addresses[: MAX_FRAMES - 1]  # one more is the allocator's own


def _frames(site: dict[str, Any]) -> list[dict[str, Any]]:
    return [frame for frame in site["stack"] if not frame["inlined"]]


def _is_sample(site: dict[str, Any]) -> bool:
    return [frame["function"] for frame in _frames(site)[1:2]] == ["take_sample"]


def _addresses(site: dict[str, Any]) -> Addresses:
    _allocator, sample, *callers = (frame["address"] for frame in _frames(site))
    return (sample + 1, *callers)


def _common(one: Addresses, other: Addresses) -> int:
    """How many frames are equal, from the innermost on."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _difference(sample: Sample, unexpected: Iterable[Addresses], sites: dict[Addresses, dict]) -> str:
    expected = _kept(sample.addresses)
    nearest = max(unexpected, key=lambda other: _common(expected, other), default=())
    common = _common(expected, nearest)
    names = [frame["function"] for frame in _frames(sites[nearest])[1:]] if nearest else []
    end = sites[nearest]["truncated"] if nearest else None
    return "\n".join(
        (
            f"path: {sample.path}",
            f"equal: {common} of {len(expected)} frames, then",
            f"gdb: {[hex(address) for address in expected[common : common + 4]]}",
            f"seen: {[hex(address) for address in nearest[common : common + 4]]}, ended by {end}",
            f"functions seen: {names[: common + 4]}",
        )
    )
