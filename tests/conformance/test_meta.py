"""The suite notices kernels that are wrong on purpose: in its samples, and in generated cases."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import attrs
import pytest
from tflgpu.conformance.fuzz import generated_checks
from tflgpu.conformance.op_checks import op_checks
from tflgpu.conformance.target import DeviceUnderTest
from tflgpu.errors import TflgpuError
from tflgpu.kernels import conv, pool
from tflgpu.kernels.activation import activate
from tflgpu.kernels.direct import OutputBlock, build_direct
from tflgpu.language.types import F32x4
from tflgpu.lowering.lowering import Lowering, guard
from tflgpu.lowering.rule import KernelRule
from tflgpu.plugins.hookspecs import hookimpl
from tflgpu.plugins.registry import Registry


def shifted(window: Any) -> Any:
    """Starts one pixel further in wherever there is padding above."""
    return attrs.evolve(window, pad_top=window.pad_top - 1) if window.pad_top else window


def wrong_conv(low: Lowering) -> None:
    """Off by one at the padded edge."""
    problem = conv.conv_problem(low)
    window = shifted(conv.conv_window(low.node))
    gather = conv.gather_window(low.node.input(0).shape, window)
    build_direct(low, attrs.evolve(problem, gather=gather), "wrong", OutputBlock())


def wrong_pool(low: Lowering) -> None:
    """Off by one at the padded edge."""
    pool._build_alone(low, shifted(pool.pool_window(low.node)), unroll=True)


def wrong_broadcast(low: Lowering) -> None:
    """Takes the first row of an operand whatever the position."""
    k = low.kernel("wrong_add", (64, 1, 1))
    a, b, out = low.read(k, 0), low.read(k, 1), low.write(k)
    count = out.layout.outer * out.slices
    i = k.let(k.global_id(0))
    guard(k, i < count)
    outer, slice_ = k.let(i // out.slices), k.let(i % out.slices)
    x = k.let(a.load(k.i32(0), slice_) if a.shape != out.shape else a.load(outer, slice_))
    y = k.let(b.load(k.i32(0), slice_) if b.shape != out.shape else b.load(outer, slice_))
    total = x + y
    out.store(outer, slice_, activate(k, low.attrs.activation, k.let(total)))
    low.dispatch(k, (count, 1, 1))


def no_barrier(low: Lowering) -> None:
    """Neighbours hand each other their vectors through shared memory without waiting."""
    k = low.kernel("no_barrier", (32, 1, 1))
    src, out = low.read(k, 0), low.write(k)
    count = out.layout.outer * out.slices
    room = k.shared("room", F32x4, 32)
    lane, i = k.let(k.local_id(0)), k.let(k.global_id(0))
    # Every invocation brings what another one of its workgroup stores.
    mine = k.let(k.min(k.group_id(0) * 32 + (lane ^ 1), count - 1))
    value = src.load(mine // src.slices, mine % src.slices)
    k.store_shared(room, lane, k.cast(value, F32x4.scalar))
    with k.if_(i < count):
        other = k.cast(k.load_shared(room, lane ^ 1), low.compute)
        out.store(k.let(i // out.slices), k.let(i % out.slices), k.max(other, 0.0))
    low.dispatch(k, (count, 1, 1))


def takes_floats(node: Any, site: Any) -> str | None:
    return None if node.input(0).dtype.is_float else "only floats are done wrong"


WRONG = {
    "conv": ("CONV_2D", wrong_conv, conv.constant_weights),
    "pool": ("MAX_POOL_2D", wrong_pool, takes_floats),
    "broadcast": ("ADD", wrong_broadcast, takes_floats),
    "barrier": ("RELU", no_barrier, takes_floats),
}


#: Where each is tried: everywhere on the interpreter; on a driver that computes on the CPU, those
#: that show different things.
SAMPLES = {
    ("cpu_ref", 1): tuple(WRONG),
    ("opencl", 0): ("broadcast", "barrier"),
    # Software Vulkan runs a workgroup in step, so that a missing barrier cannot show.
    ("vulkan", 0): ("conv", "pool"),
    ("wgpu", 0): ("conv",),
}
GENERATED = {
    ("cpu_ref", 1): tuple(WRONG),
    ("opencl", 0): ("barrier",),
    ("vulkan", 0): ("conv",),
    ("wgpu", 0): ("pool",),
}


def each(where: dict[tuple[str, int], tuple[str, ...]]) -> Any:
    """The wrong kernels, each on the devices where it is tried."""
    pairs = [(device, name) for device, names in where.items() for name in names]
    ids = [f"{device[0]}-{name}" for device, name in pairs]
    return pytest.mark.parametrize(("open_wrong", "name"), pairs, ids=ids, indirect=["open_wrong"])


@pytest.fixture
def open_wrong(request: pytest.FixtureRequest, require_backend: Callable[[str], Any]) -> Any:
    """``open_wrong(name)``: a device on which one op has the wrong kernel of that name."""
    backend, index = request.param
    require_backend(backend)
    opened: list[DeviceUnderTest] = []

    class Wrong:
        def __init__(self, rule: KernelRule) -> None:
            self.tflgpu_register_kernels = hookimpl(lambda backend: [rule])

    def make(name: str) -> DeviceUnderTest:
        op, build, accepts = WRONG[name]
        own = import_module(f"tflgpu_{backend}.plugin")
        rule = KernelRule(op, f"wrong_{name}", build, accepts, rank=1000, fuses=False)
        plugins = {backend: own, "wrong": Wrong(rule)}
        opened.append(DeviceUnderTest.open(Registry.of(plugins), backend, index))
        return opened[-1]

    yield make
    for target in opened:
        target.close()


def failures(target: DeviceUnderTest, checks: Any) -> dict[str, str]:
    found = {}
    for check in checks:
        try:
            check.run(target)
        except (AssertionError, TflgpuError) as error:
            found[check.id] = str(error)
    return found


@each(SAMPLES)
def test_samples_notice_a_wrong_kernel(open_wrong: Any, name: str) -> None:
    target = open_wrong(name)
    op = target.ops[WRONG[name][0]]
    found = failures(target, [c for c in op_checks([op]) if "/f32/" in c.id])
    assert any(id.endswith("/f32/edge") for id in found)
    assert any(id.endswith("/f32/internal") for id in found)


@each(GENERATED)
def test_generated_cases_notice_a_wrong_kernel(open_wrong: Any, name: str) -> None:
    target = open_wrong(name)
    op = target.ops[WRONG[name][0]]
    found = failures(target, generated_checks([op]))
    (message,) = found.values()
    assert f"{op.name} in " in message
    assert "Sample('generated'" in message, "what fails can be pasted"
