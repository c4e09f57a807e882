"""Plugins that break the contract of the hooks: listed with a reason, and the rest goes on."""

from __future__ import annotations

import json
import re
import time
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.cli.app import make_app
from tflgpu.compat import CompatEntry
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.contract.device import API_VERSION, Allowances, BackendInfo, Probe
from tflgpu.devices import choose
from tflgpu.errors import DeviceError, PluginError
from tflgpu.ir.graph import Node
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.generator import ShaderGenerator
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.rule import KernelRule
from tflgpu.ops.base import OpDef, no_attrs
from tflgpu.options import DelegateOptions
from tflgpu.passes.base import Pass
from tflgpu.plugins import registry as plugins
from tflgpu.plugins import sources as plugin_sources
from tflgpu.plugins.hookspecs import hookimpl
from tflgpu.plugins.registry import Registry
from tflgpu.plugins.sources import Plugin
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model
from tflgpu_cpu_ref import plugin as cpu_ref
from typer.testing import CliRunner

from tests.plugins import third_party_toys as toys
from tests.plugins.third_party_toys import (
    ERRORS,
    INFO,
    NodeToy,
    PlanToy,
    hooks,
    install,
    plugin_of,
    registry_of,
)
from tests.running import raising


def _op(**changes: Any) -> OpDef:
    good = OpDef("Toy", no_attrs, lambda a, o: [], lambda a, o: [], list)
    return attrs.evolve(good, **changes)


def _hook(name: str, answer: Any) -> Any:
    return plugin_of(**{name: lambda: answer})


def _rule(**changes: Any) -> KernelRule:
    return attrs.evolve(KernelRule("RELU", "toy", lambda low: None), **changes)


def _backend(**changes: Any) -> Any:
    return _hook("register_backends", [attrs.evolve(BackendInfo("toy", API_VERSION), **changes)])


class Unmarked:
    """The mark is forgotten."""

    def tflgpu_register_backends(self) -> Any:
        return [BackendInfo("toy", API_VERSION)]


class HalfMarked(Unmarked):
    """One mark is."""

    @hookimpl
    def tflgpu_probe(self, backend: str) -> Any:
        return None


#: What a plugin may be, and what is said of it.
FAULTS: dict[str, tuple[Any, str]] = {
    "a later API version": (_backend(api_version=API_VERSION + 1), "upgrade tflgpu"),
    "an earlier API version": (_backend(api_version=API_VERSION - 1), "Upgrade the plugin"),
    "no API version": (_backend(api_version="1"), "API version '1', which there never was"),
    "no hooks": (plugin_of(), "it has no hooks"),
    "a string": ("not a plugin", "it has no hooks"),
    "None": (None, "it has no hooks"),
    "unmarked hooks": (Unmarked(), "tflgpu_register_backends lacks @hookimpl"),
    "a mark forgotten": (HalfMarked(), "tflgpu_register_backends lacks @hookimpl"),
    "wrong argument": (plugin_of(probe=lambda backend, colour: None), "colour"),
    "misspelt": (plugin_of(prob=lambda backend: None), "tflgpu_prob"),
    "unhashable": (SimpleNamespace(), "unhashable"),
    "a backend twice": (
        _hook("register_backends", [BackendInfo("toy", API_VERSION)] * 2), "backend toy"),
    "a name that is a number": (_backend(name=3), "name is 3"),
    "no name": (_backend(name=""), "name is ''"),
    "a rank of text": (_backend(rank="high"), "rank is 'high'"),
    "a rank of True": (_backend(rank=True), "rank is True"),
    "requires a text": (_backend(requires="json"), "requires is 'json'"),
    "requires numbers": (_backend(requires=(1,)), "requires is"),
    "an extra of None": (_backend(extra=None), "extra is None"),
    "backends of None": (_hook("register_backends", None), "gave None"),
    "backends of a dict": (_hook("register_backends", {}), "gave dict"),
    "a generator": (plugin_of(register_ops=lambda: (o for o in ())), "gave generator"),
    "ops of None": (_hook("register_ops", None), "gave None"),
    "an op that tflgpu has": (_hook("register_ops", [_op(name="RELU")]), "tflgpu"),
    "an op twice": (_hook("register_ops", [_op(), _op()]), "op Toy is registered"),
    "an op without a name": (_hook("register_ops", [_op(name=None)]), "name is None"),
    "an op without reference": (_hook("register_ops", [_op(reference=1)]), "reference is 1"),
    "an op of no accuracy": (_hook("register_ops", [_op(accuracy="exact")]), "accuracy"),
    "a pass that is none": (_hook("register_passes", [Pass("toy", None)]), "run is None"),
    "a pass for an earlier tflgpu": (
        _hook("register_passes", [Pass("toy", lambda g: 0)]), r"'toy': run does not take two"),
    "a pass of no phase": (
        _hook("register_passes", [Pass("toy", lambda g, c: 0, phase="early")]), "phase"),
    "a pass that tflgpu has": (
        _hook("register_passes", [Pass("fold_constants", lambda g, c: 0)]), "pass fold_constants"),
    "a pass of no name": (_hook("register_passes", [Pass(4, lambda g, c: 0)]), "name is 4"),
    "a rule without build": (
        plugin_of(register_kernels=lambda backend: [_rule(build=None)]), "build is None"),
    "a rule of no rank": (
        plugin_of(register_kernels=lambda backend: [_rule(rank=1.5)]), "rank is 1.5"),
    "a rule twice": (
        plugin_of(register_kernels=lambda backend: [_rule(), _rule(rank=3)]),
        "rule toy for RELU is registered twice"),
    "rules of a dict": (plugin_of(register_kernels=lambda backend: {}), "gave dict"),
    "a generator of no function": (
        _hook("register_generators", [ShaderGenerator("toy-c", "text")]), "source is 'text'"),
    "a generator without a name": (
        _hook("register_generators", [ShaderGenerator("", str)]), "name is ''"),
    "a generator twice": (
        _hook("register_generators", [ShaderGenerator("toy-c", max)] * 2),
        "shader generator toy-c is registered"),
    "a verdict of text": (
        plugin_of(
            compat_entries=lambda backend: [CompatEntry(name="a", reason="b", verdict="deny")]
        ),
        "verdict is 'deny'",
    ),
    "entries of text": (plugin_of(compat_entries=lambda backend: ["slow"]), "gave a str"),
}  # fmt: skip
REGISTER = {"register_backends": (), "register_ops": (), "register_passes": (),
            "register_generators": (),
            "register_kernels": ("backend",), "compat_entries": ("backend",)}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_is_listed_and_the_rest_goes_on(fault: str) -> None:
    target, match = FAULTS[fault]
    found = registry_of(target, broken=True)
    (failure,) = found.failures
    assert (failure.name, failure.distribution) == ("toy-plugin", "toy-package")
    assert re.search(match, failure.error), failure.error
    _goes_on(found)


@pytest.mark.parametrize("hook", REGISTER)
@pytest.mark.parametrize("error", ERRORS)
def test_a_registration_that_raises(hook: str, error: str) -> None:
    fails = raising(ERRORS[error])
    function = (lambda backend: fails()) if REGISTER[hook] else (lambda: fails(None))
    found = registry_of(hooks(NodeToy, **{hook: function}), broken=True)
    assert type(ERRORS[error]).__name__ in found.failures[0].error
    _goes_on(found)


def _goes_on(found: Registry) -> None:
    """The reference backend is there, and nothing of the broken plugin is."""
    assert list(found.backends) == ["cpu_ref"]
    assert found.probe("cpu_ref").available
    assert "RELU" in found.ops() and "Toy" not in found.ops()
    assert found.passes() == ()
    assert found.rules("cpu_ref") == ()
    choice, device = choose.open_best(found, DelegateOptions(backend="cpu_ref"), {})
    assert device is not None and choice.device is not None
    device.close()


@pytest.mark.parametrize("name", [3, None, "", b"toy"], ids=repr)
def test_a_plugin_whose_name_is_none(name: Any) -> None:
    found = Registry([Plugin(name, "toy-package", hooks(NodeToy))])
    assert "which is no name" in found.failures[0].error


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found = [SimpleNamespace(name="cpu_ref", dist=SimpleNamespace(name="tflgpu"),
                             load=lambda: cpu_ref)]  # fmt: skip
    monkeypatch.setattr(plugin_sources, "entry_points", lambda group: found)
    monkeypatch.setattr(plugins, "_registry", None)
    return found


def _devices() -> Any:
    result = CliRunner().invoke(make_app(), ["devices", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("error", ERRORS)
def test_an_import_that_raises(error: str, entries: list[Any]) -> None:
    dist = SimpleNamespace(name="toy-package")
    entries.append(SimpleNamespace(name="toy", dist=dist, load=raising(ERRORS[error])))
    found = _devices()
    (failure,) = found["failed_plugins"]
    assert failure["distribution"] == "toy-package"
    assert type(ERRORS[error]).__name__ in failure["error"]
    assert [b["name"] for b in found["backends"]] == ["cpu_ref"]


def test_an_import_is_interrupted(entries: list[Any]) -> None:
    entries.append(SimpleNamespace(name="toy", dist=None, load=raising(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        plugins.registry()


def test_a_failure_is_warned_of_once(entries: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    entries.append(SimpleNamespace(name="toy", dist=None, load=raising(ImportError("no.so"))))
    for _ in range(2):
        plugins.registry()
    (record,) = caplog.records
    assert "no.so" in record.getMessage()


def test_a_slow_import_is_listed(entries: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.1, 5.0, 7.5])
    monkeypatch.setattr(plugin_sources, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    dist = SimpleNamespace(name="toy-package")
    entries.append(SimpleNamespace(name="slow", dist=dist, load=lambda: hooks(NodeToy)))
    (slow,) = _devices()["slow_plugins"]
    assert slow == {"name": "slow", "distribution": "toy-package", "import_seconds": 2.5}
    assert time.perf_counter() > 0


PROBES: dict[str, Any] = {
    "a number": 7,
    "a list": [INFO],
    "available of text": Probe("yes"),
    "available of None": Probe(None),
    "a reason of None": Probe(False, None),
    "devices of None": Probe(True, devices=None),
    "devices of text": Probe(True, devices=("Toy",)),
    "another's device": Probe(True, devices=(attrs.evolve(INFO, backend="opencl"),)),
    "no index": Probe(True, devices=(attrs.evolve(INFO, index="0"),)),
    "a negative index": Probe(True, devices=(attrs.evolve(INFO, index=-1),)),
    "one index twice": Probe(True, devices=(INFO, INFO)),
    "no name": Probe(True, devices=(attrs.evolve(INFO, name=None),)),
    "no driver": Probe(True, devices=(attrs.evolve(INFO, driver=535),)),
}  # fmt: skip


@pytest.mark.parametrize("fault", PROBES)
def test_a_probe_that_is_none(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = hooks(NodeToy, probe=lambda backend: PROBES[fault] if backend == "toy" else None)
    found = registry_of(target)
    probe = found.probe("toy")
    assert not probe.available
    assert re.match(r"plugin toy-plugin \(from toy-package\) answered its probe", probe.reason)
    install(monkeypatch, target)
    y, _ = toys.run()
    assert y.shape == (2, 3)
    with pytest.raises(DeviceError, match="toy-package"):
        toys.run(backend="toy")


@pytest.mark.parametrize("error", ERRORS)
def test_a_probe_that_raises(error: str) -> None:
    found = registry_of(hooks(NodeToy, probe=toys.raising_hook(ERRORS[error])))
    assert re.search(r"its probe failed \(plugin toy-plugin", found.probe("toy").reason)


SITE = Target.plain(DeviceCaps(), Precision.F32).site


@pytest.mark.parametrize("answer", [True, False, "no", 3], ids=repr)
def test_a_veto_that_is_none(answer: Any) -> None:
    found = registry_of(plugin_of(node_support=lambda node: answer))
    refused = found.node_support("cpu_ref", Node("RELU", None, [], []), SITE)
    assert refused is not None
    assert "toy-plugin" in refused.reason


@pytest.mark.parametrize("error", ERRORS)
def test_what_is_asked_later_raises(error: str, caplog: pytest.LogCaptureFixture) -> None:
    fails = raising(ERRORS[error])
    found = registry_of(
        hooks(
            NodeToy, node_support=lambda node: fails(), plan_ready=lambda plan: fails(),
            register_commands=lambda app: fails(), conformance_allowances=lambda backend: fails(),
        )
    )  # fmt: skip
    refused = found.node_support("toy", Node("RELU", None, [], []), SITE)
    assert refused is not None and "toy-plugin" in refused.reason
    found.plan_ready("toy", Plan(0, 64, (), (), (), ()))
    assert "toy-plugin" in caplog.text
    (failure,) = found.register_commands(None)
    assert failure.distribution == "toy-package"
    with pytest.raises(PluginError, match="toy-plugin"):
        found.conformance_allowances("toy")


@pytest.mark.parametrize(
    "profile", [7, "lax", Allowances(expectations="known.txt")], ids=repr  # type: ignore[arg-type]
)  # fmt: skip
def test_a_profile_that_is_none(profile: Any) -> None:
    found = registry_of(hooks(NodeToy, conformance_allowances=lambda backend: profile))
    with pytest.raises(PluginError, match="toy-plugin"):
        found.conformance_allowances("toy")


def test_who_looks_at_a_plan_cannot_change_its_constants(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Caches and devices know them by what they held."""

    def clear(backend: str, plan: Plan) -> None:
        plan.constants[0][...] = 0

    weights = np.arange(15, dtype=np.float32).reshape(5, 3)
    tensors = [
        TensorSpec("x", (2, 3)),
        TensorSpec("w", (5, 3), data=weights),
        TensorSpec("y", (2, 5)),
    ]
    operators = [OperatorSpec("FULLY_CONNECTED", {}, (0, 1, -1), (2,))]
    install(monkeypatch, hooks(PlanToy, plan_ready=clear))
    with caplog.at_level("WARNING", "tflgpu"):
        y, _ = toys.run(write_model(ModelSpec(tensors, operators, (0,), (2,))), backend="toy")
    np.testing.assert_allclose(y, toys.X @ weights.T, rtol=1e-6)
    assert "read-only" in caplog.text
