"""Tools that start the program: the words before its command, and environment variables.

Each writes its findings into a given directory.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers import NotHere

_INSIDE = Path(__file__).parents[1] / "inside"
_LIBRARIES = Path("/usr/lib")
# The default of both allocators: one sample in 512 KiB.
_SAMPLE_SHIFT = 19


@dataclass(frozen=True, slots=True)
class Launcher:
    """How to start a program under a tool. `preload` goes into LD_PRELOAD, which may have other entries."""

    prefix: tuple[str, ...] = ()
    preload: tuple[Path, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, command: Sequence[object]) -> list[str]:
        """The whole command."""
        variables = dict(self.variables)
        if self.preload:
            variables["LD_PRELOAD"] = ":".join(map(str, self.preload))
        assignments = [f"{name}={value}" for name, value in variables.items()]
        return ["env", *assignments, *self.prefix, *map(str, command)]


def inside(_directory: Path, interval_bytes: int | None = None) -> Launcher:
    """bpfleakd's library: it announces a block in `interval_bytes` (None: 512 KiB) to an attached daemon."""
    build = _INSIDE.parent / "build" / "inside"
    made = subprocess.run(
        ["make", "--silent", "-C", _INSIDE, f"BUILD={build}"], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise NotHere(f"libbpfleak.so cannot be built: {made.stderr}")
    variables = {} if interval_bytes is None else {"BPFLEAK_SAMPLE_INTERVAL": str(interval_bytes)}
    return Launcher(preload=(build / "libbpfleak.so",), variables=variables)


def heaptrack(directory: Path) -> Launcher:
    """heaptrack, which records into a file as with `heaptrack --raw`."""
    libraries = sorted(_LIBRARIES.glob("**/heaptrack/libheaptrack_preload.so"))
    if not libraries:
        raise NotHere("heaptrack is not installed: apt install heaptrack")
    return Launcher(
        preload=(libraries[0],), variables={"DUMP_HEAPTRACK_OUTPUT": str(directory / "heaptrack.raw")}
    )


def valgrind(directory: Path) -> Launcher:
    """valgrind's memcheck, which writes the leaks to a file when the program ends."""
    program = shutil.which("valgrind")
    if program is None:
        raise NotHere("valgrind is not installed: apt install valgrind")
    options = ("--leak-check=full", "--show-leak-kinds=all", "--num-callers=30", "--xml=yes")
    # Also if jemalloc provides malloc.
    options = (*options, "--soname-synonyms=somalloc=*jemalloc*")
    return Launcher(prefix=(program, *options, f"--xml-file={directory}/valgrind.%p.xml"))


def jemalloc(directory: Path, *, profiled: bool) -> Launcher:
    """jemalloc in place of the C library's allocator; with `profiled`, its own sampling of the heap."""
    library = _library("libjemalloc.so.2", "libjemalloc2")
    if not profiled:
        return Launcher(preload=(library,))
    options = f"prof:true,lg_prof_sample:{_SAMPLE_SHIFT},prof_prefix:{directory}/jemalloc,prof_final:true"
    launcher = Launcher(preload=(library,), variables={"MALLOC_CONF": f"{options},abort_conf:true"})
    # A jemalloc built without profiling would silently ignore this.
    if subprocess.run(launcher.command(["true"]), capture_output=True, check=False).returncode:
        raise NotHere(f"{library} was built without profiling")
    return launcher


def tcmalloc(directory: Path, *, every: bool | None) -> Launcher:
    """tcmalloc (gperftools) in place of the C library's allocator.

    With `every` it is profiled: every allocation (HEAPPROFILE), or samples (TCMALLOC_SAMPLE_PARAMETER).
    """
    library = _library("libtcmalloc.so.4", "libgoogle-perftools4")
    variables = {}
    if every:
        # Written at the end, not in between.
        variables = {
            "HEAPPROFILE": str(directory / "tcmalloc"),
            "HEAP_PROFILE_ALLOCATION_INTERVAL": "0",
            "HEAP_PROFILE_INUSE_INTERVAL": "0",
        }
    elif every is not None:
        variables = {"TCMALLOC_SAMPLE_PARAMETER": str(1 << _SAMPLE_SHIFT)}
    return Launcher(preload=(library,), variables=variables)


def _library(name: str, package: str) -> Path:
    found = sorted(_LIBRARIES.glob(f"*/{name}"))
    if not found:
        raise NotHere(f"{name} is not installed: apt install {package}")
    return found[0]
