"""The suite notices kernels that are wrong on purpose: in its samples, and in generated cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.conformance.fuzz import generated_checks
from tflgpu.conformance.node_checks import node_checks
from tflgpu.conformance.op_checks import op_checks
from tflgpu.conformance.samples import materialize
from tflgpu.conformance.special import SpecialKind, special_samples
from tflgpu.conformance.special_table import special_cases, special_operands
from tflgpu.conformance.target import Check, DeviceUnderTest
from tflgpu.errors import TflgpuError
from tflgpu.kernels import conv, fixed_point, pool, quantized_sums
from tflgpu.kernels.accept import FLOATS, takes
from tflgpu.kernels.activation import activate
from tflgpu.kernels.direct import OutputBlock, build_direct
from tflgpu.language import evaluate
from tflgpu.language.builder import Builder
from tflgpu.language.functions import FUNCTIONS
from tflgpu.language.tree import COMPARE, Expr, Operand
from tflgpu.language.types import F32x4, Scalar
from tflgpu.lowering.lowering import Lowering, guard
from tflgpu.lowering.rule import ElementwiseRule, KernelRule
from tflgpu.ops.registry import builtin_ops
from tflgpu.plugins.hookspecs import hookimpl
from tflgpu.plugins.registry import Registry, registry
from tflgpu_cpu_ref import plugin


def shifted(window: Any) -> Any:
    """Starts one pixel further in wherever there is padding above."""
    return attrs.evolve(window, pad_top=window.pad_top - 1) if window.pad_top else window


def wrong_conv(low: Lowering) -> None:
    """Off by one at the padded edge."""
    problem = conv.conv_problem(low)
    window = shifted(conv.conv_window(low.node))
    gather = conv.gather_window(low.node.input(0).shape, window)
    build_direct(low, attrs.evolve(problem, loads=gather), "wrong", OutputBlock())


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


# The suite notices integer kernels that round a little differently from TFLite's.


RIGHT = fixed_point.upper_half


def one_less(k: Builder, x: Expr, value: Operand) -> Expr:
    """A unit of the last of some thirty bits."""
    return RIGHT(k, x, value) - 1


def down(k: Builder, x: Expr, bits: Operand) -> Expr:
    """No rounding: to the smaller number."""
    return x if not isinstance(bits, Expr) and bits == 0 else x >> bits


def halves_up(k: Builder, x: Expr, bits: Operand) -> Expr:
    """Halves to the larger number, as one shift of a 64-bit product rounds."""
    if not isinstance(bits, Expr):
        return x if bits == 0 else (x + (1 << int(bits) >> 1)) >> bits
    one = k.const(1, x.type)
    return (x + ((one << bits) >> 1)) >> bits


INTEGERS_WRONG = {"one_less": ("upper_half", one_less), "down": ("shift_right", down),
         "halves_up": ("shift_right", halves_up)}  # fmt: skip


@pytest.mark.parametrize(
    "op", ["QUANTIZED_ADD", "QUANTIZED_CONV_2D", "QUANTIZED_DEPTHWISE_CONV_2D"]
)
@pytest.mark.parametrize("name", INTEGERS_WRONG)
def test_samples_notice_wrong_rounding(op: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That they accept what rounds right is asked by `test_suite.py`."""
    where, wrong = INTEGERS_WRONG[name]
    for module in (fixed_point, quantized_sums):
        if hasattr(module, where):
            monkeypatch.setattr(module, where, wrong)
    target = DeviceUnderTest.open(registry(), "cpu_ref", 1)
    found: dict[str, Any] = {}
    for check in op_checks([target.ops[op]]):
        if "/f32/" not in check.id:
            continue
        try:
            assert check.run(target) is None, "it was not asked"
        except AssertionError as error:
            found[check.id] = error
    target.close()
    assert {id.rsplit("/", 1)[1] for id in found} == {"edge", "internal"}


# The suite notices kernels that lose a NaN or make one, and plants what it says it does.


OPS = builtin_ops()


def _fmax(k: Builder, attributes: Any, operands: Any) -> Expr:
    """C's fmax, which prefers a number to a NaN."""
    a, b = k.let(operands[0], "a"), k.let(operands[1], "b")
    return k.select(a.ne(a) | (b > a), b, a)


def _relu(k: Builder, attributes: Any, operands: Any) -> Expr:
    x = k.let(operands[0], "x")
    return k.select(x > 0.0, x, 0.0)


def _prelu(k: Builder, attributes: Any, operands: Any) -> Expr:
    """A choice written as a sum: 0 * inf is NaN."""
    x = k.let(operands[0], "x")
    zero, one = k.const(0.0, x.type), k.const(1.0, x.type)
    positive = k.let(k.select(x >= 0.0, one, zero), "positive")
    return x * positive + x * operands[1] * (1.0 - positive)


def _logistic(k: Builder, attributes: Any, operands: Any) -> Expr:
    """Overflows to inf / inf."""
    power = k.let(k.call("exp", operands[0]), "power")
    return power / (power + 1.0)


SPECIAL_WRONG: dict[str, Callable[..., Expr]] = {
    "MAXIMUM": _fmax, "RELU": _relu, "PRELU": _prelu, "LOGISTIC": _logistic,
}  # fmt: skip


@pytest.fixture
def open_wrong_special() -> Iterator[Callable[[str], DeviceUnderTest]]:
    opened: list[DeviceUnderTest] = []

    class Wrong:
        def __init__(self, rule: ElementwiseRule) -> None:
            self.tflgpu_register_kernels = hookimpl(lambda backend: [rule])

    def make(op: str) -> DeviceUnderTest:
        rule = ElementwiseRule(op, SPECIAL_WRONG[op], takes(FLOATS))
        plugins = {"cpu_ref": plugin, "wrong": Wrong(rule)}
        opened.append(DeviceUnderTest.open(Registry.of(plugins), "cpu_ref", 1))
        return opened[-1]

    yield make
    for target in opened:
        target.close()


@pytest.mark.parametrize("op", SPECIAL_WRONG)
def test_a_kernel_wrong_only_for_special_numbers_is_noticed(
    open_wrong_special: Any, op: str
) -> None:
    target = open_wrong_special(op)
    failed = {"special": 0, "usual": 0}
    for check in op_checks([OPS[op]]):
        if "/f32/" not in check.id:
            continue
        try:
            check.run(target)
        except (AssertionError, TflgpuError):
            failed["special" if SpecialKind.EVERYWHERE.value in check.id else "usual"] += 1
    assert failed["special"]
    assert not failed["usual"], "the usual samples should not see it"


@pytest.mark.parametrize(
    "op", [o for o in OPS.values() if special_samples(o)], ids=lambda o: o.name
)
def test_every_kind_is_planted(op: Any) -> None:
    kinds = set()
    for sample, planted in special_samples(op):
        kinds.add(planted.kind)
        case = materialize(op, sample, planted=planted)
        found = [*case.arrays.values(), *(v.data for v in case.graph.values.values())]
        floats = [a.reshape(-1) for a in found if a is not None and a.dtype.kind == "f"]
        flat = np.concatenate(floats).astype(np.float64)
        if planted.kind in (SpecialKind.NAN, SpecialKind.ALL_NAN):
            assert np.isnan(flat).any()
        elif planted.kind in (SpecialKind.INF, SpecialKind.MINUS_INF):
            assert np.isinf(flat).any()
    assert kinds == (
        {SpecialKind.EVERYWHERE} if op.elementwise else set(SpecialKind) - {SpecialKind.EVERYWHERE}
    )


# The suite's special numbers: devices that lose a NaN in one of the usual ways are caught.


CHECKS = {c.id: c for c in node_checks() if c.id.startswith("1/special/")}


@pytest.fixture
def target() -> Iterator[DeviceUnderTest]:
    opened = DeviceUnderTest.open(registry(), "cpu_ref", 1)
    yield opened
    opened.close()


def test_every_float_type_and_width_has_one() -> None:
    assert set(CHECKS) == {f"1/special/{s}x{w}" for s in ("f32", "f16") for w in (1, 2, 3, 4)}


def test_every_function_comparison_and_float_operator_is_in_the_table() -> None:
    names = {case.name for case in special_cases(Scalar.F32, halves=True)}
    functions = {name for name, fn in FUNCTIONS.items() if Scalar.F32 in fn.takes}
    assert names >= functions | COMPARE | {"add", "sub", "mul", "div", "min", "max", "neg"}


def test_vectors_have_different_lanes_and_all_pairs_are_there() -> None:
    a, b, _ = special_operands(Scalar.F32)
    assert len(a) % 12 == 0
    pairs = set(zip(a.view(np.uint32).tolist(), b.view(np.uint32).tolist(), strict=True))
    assert len(pairs) == len(np.unique(a.view(np.uint32))) ** 2
    assert (np.isnan(a.reshape(-1, 4)).sum(1) == 1).sum() > 20


def test_the_interpreter_passes(target: DeviceUnderTest) -> None:
    for check in CHECKS.values():
        assert check.run(target) is None


def _native_pow(x: Any, y: Any) -> Any:
    return np.exp2(y * np.log2(x))


def _ordered(a: Any, b: Any) -> Any:
    return (a != b) & ~np.isnan(a) & ~np.isnan(b)


def _first_if_nan(a: Any, b: Any) -> Any:
    return np.where(b > a, b, a)  # the larger, but of (1, NaN) it makes 1


TABLE_WRONG: dict[str, tuple[str, Callable[..., Any], str]] = {
    "fmax": ("max", np.fmax, "max gives"),
    "fmin": ("min", np.fmin, "min gives"),
    "max of the first": ("max", _first_if_nan, "max gives"),
    "max of the second": ("max", lambda a, b: _first_if_nan(b, a), "max gives"),
    "ordered ne": ("ne", _ordered, "ne gives"),
    "unordered lt": ("lt", lambda a, b: ~(a >= b), "lt gives"),
    "isnan that says no": ("isnan", lambda a: np.zeros(a.shape, bool), "isnan gives"),
    "isnan of infinities": ("isnan", lambda a: ~np.isfinite(a), "isnan gives"),
    "sign of NaN": ("sign", lambda a: np.nan_to_num(np.sign(a)), "sign gives"),
    "pow by logarithms": ("pow", _native_pow, "pow gives"),
    "pow(1, NaN)": ("pow", lambda a, b: np.power(a, b) * np.where(b == b, 1, b), "pow gives"),
    "tanh by limits": ("tanh", lambda a: np.tanh(np.fmin(a, 10)), "tanh gives"),
    "tanh by a quotient": ("tanh", lambda a: 1 - 2 / (1 + np.exp(-2 * a)) - np.exp(2 * a) * 0,
                           "tanh gives"),
    "exp of infinity": ("exp", lambda a: np.exp(np.clip(a, -9, 9)), "exp gives"),
    "finite log": ("log", lambda a: np.log(np.maximum(a, 1e-4)), "log gives"),
    "finite rsqrt": ("rsqrt", lambda a: 1 / np.sqrt(np.abs(a)), "rsqrt gives"),
    "sin of infinity": ("sin", lambda a: np.sin(np.clip(a, -99, 99)), "sin gives"),
    "wild cos": ("cos", lambda a: np.where(np.abs(a) > 9e3, a, np.cos(a)), r"cos in \[-1, 1\]"),
    "finite quotient": ("div", lambda a, b: a / np.where(b == 0, 1, b), "div gives"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", TABLE_WRONG)
def test_a_wrong_operation_is_caught(
    mistake: str, target: DeviceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, wrong, message = TABLE_WRONG[mistake]
    binary, call = evaluate.binary, evaluate.call

    def one_binary(op: str, a: Any, b: Any) -> Any:
        is_float = np.asarray(a).dtype.kind == "f"
        if op != name or not is_float:
            return binary(op, a, b)
        return np.asarray(wrong(a, b)).astype(binary(op, a, b).dtype)

    def one_call(fn: str, args: Any) -> Any:
        if fn != name:
            return call(fn, args)
        return np.asarray(wrong(*args)).astype(call(fn, args).dtype)

    module = import_module("tflgpu.language.expressions")
    monkeypatch.setattr(module, "binary", one_binary)
    monkeypatch.setattr(module, "call", one_call)
    for check in (CHECKS["1/special/f32x1"], CHECKS["1/special/f16x4"]):
        with pytest.raises(AssertionError, match=message), np.errstate(all="ignore"):
            check.run(target)


@pytest.mark.needs("opencl")
def test_a_printer_with_fmax_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake of 8c6e0f6, in a real compiler."""
    from tflgpu_opencl import prelude

    text = "float float_at_least1(float x, float limit) { return fmax(x, limit); }"
    monkeypatch.setitem(prelude._HELPERS, "float_at_least1", text)
    opened = DeviceUnderTest.open(registry(), "opencl", 0)
    check: Check = CHECKS["1/special/f32x1"]
    try:
        with pytest.raises(AssertionError, match=r"max\(a, 0\) gives .* not .*nan"):
            check.run(opened)
    finally:
        opened.close()
