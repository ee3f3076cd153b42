"""The shells' completions: up to date with the parser, and right in the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMPLETIONS = ROOT / "deploy" / "completions"


def environment_with_a_daemon(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a bpfleakctl that traces 4711 and 4721."""
    program = tmp_path / "bpfleakctl"
    program.write_text("""#!/bin/sh\nprintf '  "pid": %s,\\n' 4711 4721\n""")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def completed(tmp_path: Path, *words: str) -> set[str]:
    """Return what bash offers for the last word."""
    script = f"""
        source {COMPLETIONS / "bpfleakctl.bash"}
        function=$(complete -p bpfleakctl | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${{#COMP_LINE}}
        $function bpfleakctl "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = environment_with_a_daemon(tmp_path)
    shell = ["bash", "--norc", "-c", script, "bash", "bpfleakctl", *words]
    done = subprocess.run(shell, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    return set(done.stdout.split())


def test_they_are_up_to_date(tmp_path):
    """`make completions` writes them again."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "scripts" / "completions.py"), str(tmp_path)]
    subprocess.run(command, check=True, env=environment)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        path.name: path.read_text() for path in COMPLETIONS.iterdir()
    }


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["de"], {"detach"}),
        (["top", "--pid", "47"], {"4711", "4721"}),
        (["detach", "472"], {"4721"}),
        (["attach", str(os.getpid())], {str(os.getpid())}),
        (["top", "--group", "f"], {"function"}),
        (["scan", "--no"], {"--no-stop"}),
        (["analyze", "hist"], {"history.json"}),
    ],
)
def test_bash_offers_commands_options_pids_and_files(tmp_path, words, offered):
    """In a real bash."""
    (tmp_path / "history.json").touch()
    assert offered <= completed(tmp_path, *words)


@pytest.mark.parametrize(
    ("shell", "name"), [("bash", "bpfleakctl.bash"), ("zsh", "_bpfleakctl"), ("fish", "bpfleakctl.fish")]
)
def test_each_shell_can_read_its_file(shell, name):
    """If the shell is installed."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: apt install {shell}")
    subprocess.run([shell, "-n", str(COMPLETIONS / name)], check=True)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed: apt install fish")
@pytest.mark.parametrize(
    ("line", "offered"), [("top --pid 47", {"4711", "4721"}), ("top --group f", {"function"})]
)
def test_fish_offers_pids_and_choices(tmp_path, line, offered):
    """In a real fish."""
    script = f"source {COMPLETIONS / 'bpfleakctl.fish'}; complete -C 'bpfleakctl {line}'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=environment_with_a_daemon(tmp_path),
    )
    assert {word.split("\t")[0] for word in done.stdout.splitlines()} == offered
