"""What --check-config finds beyond the syntax of the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bpfleakd.config_file import load_config
from bpfleakd.daemon.config_check import problems


@pytest.fixture
def checked(tmp_path: Path):
    """The problems of a configuration file; what every machine has, unless changed."""

    def problems_of(**changes: object) -> list[str]:
        plain = {"socket": "/run/bpfleakd-test.sock", "state": {"dir": None}, "bpffs_dir": "/sys/fs/bpf/x"}
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps({**plain, **changes}))
        return problems(load_config(path))

    return problems_of


def test_a_plain_configuration_has_none(checked, tmp_path: Path):
    """Directories that the daemon makes itself may be missing."""
    assert checked(state={"dir": str(tmp_path / "not" / "yet")}) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"bpffs_dir": "/var/lib"}, "bpffs_dir: /var/lib is not in a bpf file system"),
        ({"suppressions": ["/nowhere.supp"]}, "suppressions: /nowhere.supp: cannot be read"),
        ({"metrics": {"address": "300.1.1.1"}}, "metrics.address: 300.1.1.1 is not an address"),
        ({"metrics": {"address": "192.0.2.7"}}, "metrics.address: 192.0.2.7 is not an address"),
        ({"socket": "/etc/passwd"}, "socket: /etc/passwd exists and is not a socket"),
        ({"socket": "/etc/passwd/x.sock"}, "socket: /etc/passwd"),
        ({"socket_group": "no-such-group"}, "socket_group: there is no group no-such-group"),
        (
            {"policy": {"rules": [{"match": {"user": "no-such-user"}, "mode": "off"}]}},
            "policy.rules[0].match.user: there is no user no-such-user",
        ),
        (
            {"policy": {"rules": [{"match": {"comm": "a-name-that-is-cut"}, "mode": "off"}]}},
            "policy.rules[0].match.comm: the kernel cuts a-name-that-is-cut to a-name-that-is-",
        ),
    ],
)
def test_each_problem_names_its_key(checked, changes, problem):
    """It finds what the machine lacks before a restart of the daemon does."""
    (found,) = checked(**changes)
    assert found.startswith(problem)


def test_patterns_and_numbers_of_users_are_left_alone(checked):
    """They need not be users of today."""
    rules = [{"match": {"user": user}, "mode": "off"} for user in ("www-*", "4711")]
    assert checked(policy={"rules": rules}) == []


def test_another_users_directory_is_refused(checked, tmp_path: Path):
    """As by the daemon: a user who can write there controls what the daemon reads."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (found,) = checked(state={"dir": str(tmp_path / "open")})
    assert found.startswith("state.dir: ")
