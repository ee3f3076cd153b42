"""Reading the configuration again while the daemon runs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from bpfleakd.config import Config, HistoryConfig, LogConfig, LogFormat
from bpfleakd.daemon.daemon import Daemon
from bpfleakd.errors import ConfigError

STARTED = Config(log=LogConfig(format=LogFormat.JSON))


class Using:
    """A service that records the configuration that it gets."""

    def __init__(self) -> None:
        self.used: list[Config] = []

    async def use(self, config: Config) -> None:
        self.used.append(config)


def reload(*files: Config | ConfigError) -> list[Config]:
    """Start with STARTED and reload each of these files in turn; return the configurations in force."""
    remaining, service = list(files), Using()

    def read() -> Config:
        file = remaining.pop(0)
        if isinstance(file, ConfigError):
            raise file
        return file

    async def run() -> None:
        daemon = Daemon(STARTED, read, keep_on_stop=False)
        while remaining:
            await daemon._reload_config(service)

    asyncio.run(run())
    return service.used


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_what_waits_for_a_restart_is_said_at_each_reload(capsys):
    """And it does not count as being in force: not for the daemon, and not in the next comparison."""
    changed = msgspec.structs.replace(STARTED, unattended_s=600.0, tick_s=2.0)
    used = reload(changed, changed, STARTED)

    assert [(config.unattended_s, config.tick_s) for config in used] == [
        (900.0, 2.0),
        (900.0, 2.0),
        (900.0, 1.0),
    ]
    waiting = [
        event["keys"] for event in events(capsys.readouterr().err) if event["event"] == "config.needs-restart"
    ]
    assert waiting == [["unattended_s"], ["unattended_s"]]


def test_a_file_that_is_wrong_changes_nothing(capsys):
    """The next one is compared with the configuration that is still in force."""
    used = reload(ConfigError("tick_s: expected a number"), STARTED)
    assert used == [STARTED]
    assert [event["event"] for event in events(capsys.readouterr().err)] == ["config.reloaded"]


def test_half_of_a_change_that_contradicts_what_stays_is_refused(capsys):
    """A tick of 40 s goes with a window of 80 s, which waits for a restart; the one in force has 60 s."""
    changed = msgspec.structs.replace(
        STARTED, tick_s=40.0, history=HistoryConfig(window_s=80.0), unattended_s=900.0
    )
    assert reload(changed) == []
