"""The Kubernetes manifests: valid by Kubernetes' own schemas, and right by the daemon's."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

import kubernetes_validate
import pytest
import yaml

from bpfleakd.config import Config
from bpfleakd.config_file import load_config
from bpfleakd.model.process import TracingMode

DEPLOY = Path(__file__).parents[3] / "deploy"
INSIDE = yaml.safe_load((DEPLOY / "kubernetes/inside.yaml").read_text())
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes/bpfleakd.yaml").read_text()))
# The first version with all the fields, and the newest that the package has.
VERSIONS = ("1.30", kubernetes_validate.latest_version())


def manifest(kind: str) -> dict[str, Any]:
    """The one of a kind."""
    (found,) = (each for each in MANIFESTS if each["kind"] == kind)
    return found


POD = manifest("DaemonSet")["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """The ConfigMap as the daemon reads it."""
    file = tmp_path / "config.yaml"
    file.write_text(manifest("ConfigMap")["data"]["config.yaml"])
    return load_config(file)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("each", [*MANIFESTS, INSIDE], ids=lambda each: each["kind"])
def test_valid_by_the_schema(each: dict[str, Any], version: str):
    """Strictly: a key that is not known is an error."""
    kubernetes_validate.validate(each, version, strict=True)


def test_a_misspelled_key_is_noticed():
    """By the same schemas, so that the test above can fail."""
    wrong = manifest("DaemonSet") | {"spec": manifest("DaemonSet")["spec"] | {"updateStrateggy": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_capabilities_are_those_of_the_unit():
    """All but NET_ADMIN, which is useless in the pod's network namespace."""
    unit = (DEPLOY / "systemd/bpfleakd.service").read_text()
    measured = re.search(r"^CapabilityBoundingSet=(CAP_.+)$", unit, re.MULTILINE)[1].split()
    assert CONTAINER["securityContext"]["capabilities"]["drop"] == ["ALL"]
    added = CONTAINER["securityContext"]["capabilities"]["add"]
    assert {f"CAP_{name}" for name in added} == set(measured) - {"CAP_NET_ADMIN"}


def test_all_that_the_daemon_writes_is_mounted(config: Config):
    """The root file system is read-only."""
    mounts = {mount["mountPath"]: mount for mount in CONTAINER["volumeMounts"]}
    writable = {PurePosixPath(path) for path, mount in mounts.items() if not mount.get("readOnly")}
    for path in (config.socket, config.bpffs_dir, config.cache_dir, config.state.dir, "/tmp/file"):
        assert writable & {PurePosixPath(path), *PurePosixPath(path).parents}, path
    assert "readOnly" not in mounts["/sys/kernel/tracing"]
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    assert {mount["name"] for mount in mounts.values()} == set(volumes)
    for path in ("/sys/fs/bpf", "/sys/kernel/tracing"):
        assert volumes[mounts[path]["name"]]["hostPath"]["path"] == path


def test_metrics_are_where_they_are_looked_for(config: Config):
    """On all of the pod's addresses, at the port of probes, annotations and the PodMonitor."""
    assert str(config.metrics.address) == "0.0.0.0"
    (port,) = CONTAINER["ports"]
    assert port["containerPort"] == config.metrics.port
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert CONTAINER[probe]["httpGet"] == {"path": "/v1/status", "port": port["name"]}
    template = manifest("DaemonSet")["spec"]["template"]["metadata"]
    assert template["annotations"]["prometheus.io/port"] == str(config.metrics.port)
    monitor = yaml.safe_load((DEPLOY / "kubernetes/podmonitor.yaml").read_text())
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["labels"].items()
    assert [each["port"] for each in monitor["spec"]["podMetricsEndpoints"]] == [port["name"]]


def test_the_policy_leaves_the_node_alone(config: Config):
    """Nothing is traced all the time, and kubelet never."""
    assert config.policy.default is TracingMode.AUTO
    assert all(rule.mode is TracingMode.OFF for rule in config.policy.rules)
    assert "kubelet" in [rule.match.comm for rule in config.policy.rules]


def test_a_program_that_samples_itself_finds_the_library():
    """The init container copies the library to the path in LD_PRELOAD, in the same volume."""
    pod = INSIDE["spec"]["template"]["spec"]
    (brings,), (service,) = pod["initContainers"], pod["containers"]
    source, directory = brings["command"][1:]
    environment = {each["name"]: each["value"] for each in service["env"]}
    assert environment["LD_PRELOAD"] == directory + PurePosixPath(source).name
    assert f"-t {PurePosixPath(source).parent}" in (DEPLOY / "container/Containerfile").read_text()
    (volume,) = pod["volumes"]
    for container in (brings, service):
        (mount,) = container["volumeMounts"]
        assert (mount["name"], mount["mountPath"] + "/") == (volume["name"], directory)
