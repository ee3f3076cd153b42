"""The machine of the measurement, without its name."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """Kernel version, CPU model and count, whether it is a virtual machine, and its other load."""

    kernel: str
    processor: str
    cores: int
    virtual: bool
    load: float
    day: str

    def __str__(self) -> str:
        kind = "virtual machine" if self.virtual else "machine"
        return (
            f"Linux {self.kernel}, {self.processor}, {self.cores} cores, {kind};"
            f" load before the run {self.load:.1f}; {self.day}"
        )


def describe_machine() -> Machine:
    """Describe this machine, now."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", cpuinfo, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.*)$", cpuinfo, re.MULTILINE)
    version = re.match(r"\d+(\.\d+)*", os.uname().release)
    return Machine(
        kernel=version[0] if version else os.uname().release,
        processor=" ".join(model[1].split()) if model else os.uname().machine,
        cores=os.cpu_count() or 1,
        virtual="hypervisor" in (flags[1].split() if flags else ()),
        load=os.getloadavg()[0],
        day=time.strftime("%Y-%m-%d"),
    )
