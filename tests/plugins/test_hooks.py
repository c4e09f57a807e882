"""Every hook: documented with all its arguments and an example that works, and exercised here."""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target as CompileTarget
from tflgpu.conformance.graph_checks import run_graph
from tflgpu.conformance.target import DeviceUnderTest
from tflgpu.contract.buffers import MemoryKind
from tflgpu.devices.choose import find_candidates
from tflgpu.errors import DeviceError, OptionError, PluginError, UnsupportedError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.generator import ShaderGenerator
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.reason import ReasonCode
from tflgpu.ops.base import NoAttrs
from tflgpu.options import DelegateOptions
from tflgpu.passes.base import PassContext, run_passes
from tflgpu.passes.registry import default_passes
from tflgpu.plugins import hookspecs
from tflgpu.plugins.registry import Registry
from tflgpu_cpu_ref import plugin as cpu_ref
from typer.testing import CliRunner

PAGE = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")
HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("tflgpu_"))
HOOKS_SITE = CompileTarget.plain(DeviceCaps(), Precision.F32).site


def section(hook: str) -> str:
    """The text under a hook's heading."""
    return PAGE.split(f"\n## {hook}\n")[1].split("\n## ")[0]


def example(hook: str) -> types.ModuleType:
    """A hook's example as a module."""
    (code,) = re.findall(r"```python\n(.*?)```", section(hook), re.DOTALL)
    module = types.ModuleType(f"example_{hook}")
    exec(compile(code, f"docs/hooks.md, {hook}", "exec"), vars(module))
    return module


def toy(*hooks: str) -> Registry:
    """A registry of the backend that the examples build, of other examples, and of cpu_ref."""
    wanted = {"tflgpu_register_backends", "tflgpu_probe", *hooks}
    found = Registry.of({"cpu_ref": cpu_ref, **{h: example(h) for h in sorted(wanted - OWNER)},
                         "toy": _owner(*sorted(wanted & OWNER))})  # fmt: skip
    assert found.failures == ()
    return found


#: Hooks that are only asked of the plugin that registered the backend.
OWNER = {
    "tflgpu_register_backends", "tflgpu_probe", "tflgpu_open_device",
    "tflgpu_conformance_allowances",
}  # fmt: skip


def _owner(*hooks: str) -> types.ModuleType:
    module = types.ModuleType("toy")
    for hook in hooks:
        setattr(module, hook, getattr(example(hook), hook))
    return module


def twice() -> Graph:
    """A graph of the op that the examples define."""
    graph = Graph()
    x, y = (graph.add_value((3, 5), DType.F32) for _ in range(2))
    graph.inputs, graph.outputs = [x], [y]
    graph.add_node("ToyTwice", NoAttrs(), [x], [y], origins=(0,))
    return graph


@pytest.mark.parametrize("hook", HOOKS)
def test_documented(hook: str) -> None:
    text = section(hook)
    arguments = list(inspect.signature(getattr(hookspecs, hook)).parameters)
    first = text.strip().split(". ")[0]
    assert re.findall(r"`(\w+)`", first) == arguments, "its arguments, in their order"
    assert hook in vars(example(hook))


@pytest.mark.parametrize("hook", HOOKS)
def test_has_a_test(hook: str) -> None:
    test = globals().get(f"test_hook_{hook.removeprefix('tflgpu_')}")
    assert test is not None, f"write test_hook_{hook.removeprefix('tflgpu_')}"
    assert hook in inspect.getsource(test)


def test_hook_register_backends() -> None:
    found = toy("tflgpu_register_backends")
    assert found.backends["toy"].rank == -10
    assert found.distribution("toy") == "explicit"


def test_hook_probe() -> None:
    found = toy("tflgpu_probe")
    assert [d.name for d in found.probe("toy").devices] == ["a toy"]
    (candidate,) = find_candidates(found, DelegateOptions(backend="toy"), {}).found
    assert candidate.info == found.probe("toy").devices[0]


def test_hook_open_device() -> None:
    with pytest.raises(DeviceError, match="toy 0 is broken"):
        toy("tflgpu_open_device").open_device("toy", 0, DelegateOptions())


def test_hook_register_ops() -> None:
    target = DeviceUnderTest.open(toy("tflgpu_register_ops"), "cpu_ref", 0)
    (y,) = run_graph(target, twice(), Precision.F32)
    assert y.shape == (3, 5)
    target.close()


def test_hook_register_kernels() -> None:
    target = DeviceUnderTest.open(
        toy("tflgpu_register_ops", "tflgpu_register_kernels"), "cpu_ref", 1
    )
    reference = DeviceUnderTest.open(target.registry, "cpu_ref", 0)
    (got,) = run_graph(target, twice(), Precision.F32)
    (want,) = run_graph(reference, twice(), Precision.F32)
    assert np.array_equal(got, want)
    for opened in (target, reference):
        opened.close()


def test_hook_register_passes() -> None:
    passes = default_passes(toy("tflgpu_register_passes").passes())
    assert run_passes(twice(), passes, PassContext({}))["drop_nothing"] == 0


def test_hook_compat_entries() -> None:
    names = [e.name for e in toy("tflgpu_compat_entries").compat_entries("toy")]
    assert "toy_slow" in names


def test_hook_node_support() -> None:
    found = toy("tflgpu_node_support")
    node = twice().nodes[0]
    assert found.node_support("toy", node, HOOKS_SITE) is None
    node.op = "TANH"
    answer = found.node_support("toy", node, HOOKS_SITE)
    assert answer is not None and "loses its sign" in answer.reason
    assert answer.code is ReasonCode.DRIVER_FAULT
    assert found.node_support("cpu_ref", node, HOOKS_SITE) is None


def test_hook_register_generators() -> None:
    found = toy("tflgpu_register_generators")
    assert found.generators == ("toy-c", "tree")
    k = Builder("double", (64, 1, 1))
    x = k.buffer("x", Scalar.F32, 1, "read_write")
    k.store(x, 0, k.load(x, 0) * 2.0)
    kernel = k.build()
    assert found.shader("toy-c", kernel, DeviceCaps()) == "kernel double with 1 buffers\n"
    assert "double" in found.shader("tree", kernel, DeviceCaps())
    with pytest.raises(OptionError, match="no shader generator 'metal'; known: toy-c, tree"):
        found.shader("metal", kernel, DeviceCaps())


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (lambda kernel, caps: 3, "generator odd gave 3, no text"),
        (lambda kernel: "", "generator odd: TypeError"),
    ],
)
def test_a_generator_that_fails_is_named(source: Any, says: str) -> None:
    def register() -> list[ShaderGenerator]:
        return [ShaderGenerator("odd", source)]

    module = types.ModuleType("odd")
    setattr(module, "tflgpu_register_generators", hookspecs.hookimpl(register))  # noqa: B010
    found = Registry.of({"odd": module})
    k = Builder("k", (1, 1, 1))
    k.store(k.buffer("x", Scalar.F32, 1, "write"), 0, k.f32(1.0))
    with pytest.raises(PluginError, match=says):
        found.shader("odd", k.build(), DeviceCaps())


def test_hook_register_memory() -> None:
    module = example("tflgpu_register_memory")
    found = Registry.of({"toy": module})
    assert found.memory_kinds == ("a ToyMemory",)
    source = module.ToyMemory()
    memory = found.foreign_memory(source)
    assert memory is not None
    assert memory.source is source
    assert memory.kind == "a ToyMemory"
    assert found.foreign_memory(np.ones(3)) is None


@pytest.mark.parametrize(
    ("find", "error", "says"),
    [
        (lambda source: 1 / 0, PluginError, r"odd \(from explicit\): an Odd: .*ZeroDivisionError"),
        (lambda source: source, PluginError, r"an Odd: 7 is neither a ForeignMemory nor None"),
        (lambda source: _refuse(), UnsupportedError, r"^it lies apart$"),
    ],
)
def test_memory_that_is_none(find: Any, error: type[Exception], says: str) -> None:
    module = types.ModuleType("odd")
    register = lambda: [MemoryKind("an Odd", find)]  # noqa: E731
    setattr(module, "tflgpu_register_memory", hookspecs.hookimpl(register))  # noqa: B010
    with pytest.raises(error, match=says):
        Registry.of({"odd": module}).foreign_memory(7)


def _refuse() -> None:
    raise UnsupportedError("it lies apart")


def test_hook_conformance_allowances() -> None:
    found = toy("tflgpu_conformance_allowances")
    assert found.conformance_allowances("toy").tolerance_scale == 2
    assert found.conformance_allowances("cpu_ref").tolerance_scale == 1


def test_hook_plan_ready() -> None:
    module = example("tflgpu_plan_ready")
    Registry.of({"toy": module}).plan_ready("toy", Plan(0, 64, (), (), (), ()))
    assert module.seen == [("toy", 0)]


def test_hook_register_commands() -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    assert toy("tflgpu_register_commands").register_commands(app) == ()
    result: Any = CliRunner().invoke(app, ["toy"])
    assert result.output == "hello from the toy\n"
