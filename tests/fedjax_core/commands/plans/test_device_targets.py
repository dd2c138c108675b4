"""Targets: which there are, and which compiler they need."""

import importlib.metadata
from types import SimpleNamespace

import jax
import pytest
from jax.experimental import topologies

from fedjax_core.commands.plans import device_targets


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("v5e", "CHIP:SIZE"),
        ("v9:2x2", "a chip of v2"),
        ("0*v5e:2x2", "CHIP:SIZE"),
        ("v5e:0x2", "CHIP:SIZE"),
        ("v5e:32x16", "no side of a slice of v5e is longer than 16"),
        (",", "no target"),
    ],
)
def test_what_is_no_target(text, says):
    with pytest.raises(ValueError, match=says):
        device_targets.parse_targets(text)


def test_a_chip_of_v4_is_one_device(monkeypatch):
    asked = []
    monkeypatch.setattr(topologies, "get_topology_desc", lambda **given: asked.append(given) or SimpleNamespace(devices=()))
    for target in device_targets.parse_targets("v4:2x2x1,v5p:2x2x1"):
        device_targets.target_devices(target)
    assert [one.get("chip_config_name") for one in asked] == ["megacore", None]


def test_targets_and_their_compiler(monkeypatch):
    found = device_targets.parse_targets("v5e:16x16, 2*v6e:4x4,here")
    assert found == [
        device_targets.Target("v5e:16x16", 1, "v5e:16x16"),
        device_targets.Target("2*v6e:4x4", 2, "v6e:4x4"),
        device_targets.Target("here"),
    ]
    versions = {"libtpu": "0.0.12"}

    def version(package):
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError
        return versions[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    minor = ".".join(jax.__version__.split(".")[:2])
    monkeypatch.setattr(device_targets, "TRIED", {(minor, "0.0.52")})  # the extra's compiler is for this jax
    assert "libtpu 0.0.12 is not known to fit jax" in str(device_targets.explain_unavailable(found))
    versions.clear()
    assert device_targets.explain_unavailable(found) == f"{device_targets.MISSING}: pip install 'fedjax-core[plan]'"
    with monkeypatch.context() as newer:  # another jax than the extra's compiler is for
        newer.setattr(device_targets, "TRIED", {("0.9", "0.0.40")})
        newer.setattr(importlib.metadata, "requires", lambda package: ['libtpu==0.0.60.*; extra == "tpu"'])
        assert str(device_targets.explain_unavailable(found)).endswith("pip install 'libtpu==0.0.60.*'")
    assert device_targets.explain_unavailable(found[2:]) is None
