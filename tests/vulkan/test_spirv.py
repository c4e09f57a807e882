"""SPIR-V modules before any driver sees them: SPIRV-Tools accept every one."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.target import Target as CompileTarget
from tflgpu.conformance.node_table import build_table, table
from tflgpu.conformance.programs import PROGRAMS
from tflgpu.conformance.samples import materialize
from tflgpu.errors import KernelError
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.kernel import Kernel
from tflgpu.language.types import F16, F32x4, Scalar, Type
from tflgpu.lowering.lowering import Precision
from tflgpu.ops.base import OpDef
from tflgpu.ops.registry import builtin_ops
from tflgpu_vulkan.spirv.grammar import Op
from tflgpu_vulkan.spirv.listing import listing
from tflgpu_vulkan.spirv.module import _assemble, module_of, text_of
from tflgpu_vulkan.spirv.target import Target

PLAIN = Target()
FULL = Target(
    f16_arithmetic=True,
    keeps_special=frozenset({16, 32}),
    rounds_to_even=frozenset({16, 32}),
    keeps_denormals=frozenset({16}),
)
TARGETS = {"plain": PLAIN, "full": FULL}
Validate = Callable[[Iterable[bytes]], int]


@pytest.fixture(scope="session")
def validate(spirv_tool: Callable[[str], str]) -> Validate:
    """``validate(modules)``: how many different ones there were, all of them valid."""
    tool = spirv_tool("spirv-val")
    seen: set[bytes] = set()

    def check(modules: Iterable[bytes]) -> int:
        count = 0
        for module in modules:
            count += 1
            if module in seen:
                continue
            done = subprocess.run(
                [tool, "--target-env", "vulkan1.1", "-"],
                input=module, capture_output=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, (done.stdout + done.stderr).decode()
            seen.add(module)
        return count

    return check


@pytest.fixture
def reassemble(spirv_tool: Callable[[str], str], tmp_path: Path) -> Callable[[str], bytes]:
    """``reassemble(text)``: the module that spirv-as makes of it."""
    tool = spirv_tool("spirv-as")

    def run(text: str) -> bytes:
        out = tmp_path / "module.spv"
        command = [tool, "--target-env", "spv1.3", "--preserve-numeric-ids", "-", "-o", str(out)]
        done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return out.read_bytes()

    return run


def stored(scalar: Scalar, width: int, *, through_f32: bool = False) -> Kernel:
    """Copies by elements and by lanes."""
    k = Builder("stored", (4, 1, 1))
    src, dst = k.buffer("src", scalar, width, "read"), k.buffer("dst", scalar, width, "read_write")
    wide = Scalar.F32 if through_f32 else None
    i = k.let(k.global_id(0), "i")
    k.store(dst, i, k.load(src, i, wide))
    k.store_lane(dst, i + 1, k.load_lane(src, i, wide))
    k.store_lane(dst, i, k.load_lane(dst, i + 2, wide))
    return k.build()


def everything_in_shared_memory(scalar: Scalar, width: int) -> Kernel:
    k = Builder("shared", (4, 1, 1))
    dst = k.buffer("dst", Scalar.I32, 1, "write")
    tile = k.shared("tile", Type(scalar, width), 4)
    i = k.let(k.local_id(0))
    start = i > 1 if scalar is Scalar.BOOL else k.cast(i, scalar)
    k.store_shared(tile, i, k.splat(start, width))
    k.barrier()
    k.store(dst, i, k.cast(k.load_shared(tile, 3 - i).lane(width - 1), Scalar.I32))
    return k.build()


def flow() -> Kernel:
    """Branches and loops that end in every way."""
    k = Builder("flow", (4, 2, 1))
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    i, j = k.let(k.global_id(0)), k.let(k.group_id(2))
    total = k.var(k.const(0.0, F32x4), "total")
    with k.loop(0, 5, unroll=True) as a:
        with k.if_(a > i):
            k.break_()
        with k.else_():
            with k.loop(a, i, 3) as b, k.if_(b.eq(j)):
                k.store(dst, i, total)
                k.return_()
            k.add_to(total, 1.0)
    with k.if_(i > 3):
        k.return_()
    with k.else_():
        k.store(dst, i, total)
        k.return_()
    k.store(dst, 0, total)  # never reached
    return k.build()


def floats(scalar: Scalar) -> Kernel:
    """Floats that text has no plain form for."""
    k = Builder("floats", (1, 1, 1))
    dst = k.buffer("dst", scalar, 1, "write")
    values = [0.1, -0.0, 1e-7, 6e4, float("inf"), float("-inf"), float("nan")]
    for at, value in enumerate(values):
        k.store(dst, at, k.const(value, Type(scalar)) + k.const(1.0, Type(scalar)))
    return k.build()


def small_kernels() -> Iterator[Kernel]:
    scalars = [Scalar.F32, Scalar.I32, Scalar.U32, Scalar.F16, Scalar.I8, Scalar.U8, Scalar.I16]
    for scalar, width in itertools.product(scalars, (1, 2, 4)):
        yield stored(scalar, width)
    for width in (1, 2, 4):
        yield stored(Scalar.F16, width, through_f32=True)
    for scalar, width in itertools.product(scalars[:3], (1, 2, 3, 4)):
        yield everything_in_shared_memory(scalar, width)
        yield build_table(table(scalar), scalar, width)
    yield flow()
    yield floats(Scalar.F32)
    yield everything_in_shared_memory(Scalar.BOOL, 1)
    for make in PROGRAMS:
        yield make().kernel


def half_kernels() -> Iterator[Kernel]:
    yield floats(Scalar.F16)
    for width in (1, 2, 3, 4):
        yield everything_in_shared_memory(Scalar.F16, width)
        yield build_table(table(Scalar.F16), Scalar.F16, width)


@pytest.mark.parametrize("guard", [0, 4096])
@pytest.mark.parametrize("target", TARGETS)
def test_small_kernels_are_valid(validate: Validate, target: str, guard: int) -> None:
    kernels = list(small_kernels()) + (list(half_kernels()) if target == "full" else [])
    assert validate(module_of(k, TARGETS[target], guard=guard) for k in kernels) > 60


def test_the_validator_refuses_what_is_wrong(spirv_tool: Callable[[str], str]) -> None:
    module = bytearray(module_of(flow(), PLAIN))
    module[-4:] = (1 << 16 | 253).to_bytes(4, "little")  # OpReturn for OpFunctionEnd
    command = [spirv_tool("spirv-val"), "--target-env", "vulkan1.1", "-"]
    done = subprocess.run(command, input=bytes(module), capture_output=True, check=False)
    assert done.returncode != 0


@pytest.mark.parametrize("target", TARGETS)
def test_the_listing_is_the_module(reassemble: Callable[[str], bytes], target: str) -> None:
    kernels = [flow(), floats(Scalar.F32), stored(Scalar.U8, 4), stored(Scalar.F16, 2)]
    kernels += [make().kernel for make in PROGRAMS]
    kernels += list(half_kernels()) if target == "full" else []
    for kernel in kernels:
        want = _words(module_of(kernel, TARGETS[target]))
        nameless = _assemble(kernel, TARGETS[target], 0)
        nameless.titles.clear()
        assert _words(reassemble(listing(nameless))) == want
        named = _words(reassemble(text_of(kernel, TARGETS[target])))
        shapes = ([words[0] for words in module] for module in (named, want))
        assert [word for word in next(shapes) if word & 0xFFFF != Op.Name] == next(shapes)


def _words(module: bytes) -> list[list[int]]:
    """The words of each instruction."""
    words = np.frombuffer(module, "<u4")[5:].tolist()
    found = []
    while words:
        length = words[0] >> 16
        found.append(words[:length])
        words = words[length:]
    return found


def test_equal_kernels_make_equal_modules_whatever_their_names() -> None:
    def named(name: str) -> Kernel:
        k = Builder(name, (4, 1, 1))
        dst = k.buffer(name + "_dst", Scalar.F32, 1, "write")
        k.store(dst, k.let(k.global_id(0), name + "_i"), k.f32(1.5))
        return k.build()

    assert module_of(named("a"), FULL) == module_of(named("b"), FULL)
    assert "OpName" in text_of(named("a"), FULL)
    assert "%a_dst" in text_of(named("a"), FULL)


def test_a_statement_loads_a_variable_once() -> None:
    k = Builder("loads", (1, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    x = k.var(k.f32(2.0), "x")
    k.store(dst, 0, x * x + x)
    k.set(x, k.load(k.buffer("src", Scalar.F32, 1, "read"), 0))
    k.store(dst, 1, -x)
    lines = text_of(k.build(), FULL).splitlines()
    # For either store, one more where it is set, and one of the buffer.
    assert sum("OpLoad" in line for line in lines) == 4


def test_a_barrier_orders_shared_memory() -> None:
    """Of the scope of a workgroup (2), with AcquireRelease (8) and WorkgroupMemory (0x100)."""
    k = Builder("barrier", (4, 1, 1))
    room, i = k.shared("room", F32x4, 4), k.let(k.local_id(0))
    k.store_shared(room, i, k.f32(1.0, 4))
    k.barrier()
    k.store(k.buffer("dst", Scalar.F32, 4, "write"), i, k.load_shared(room, 3 - i))
    lines = [line.split() for line in text_of(k.build(), PLAIN).splitlines()]
    (barrier,) = (line[1:] for line in lines if line[0] == "OpControlBarrier")
    values = {line[0]: line[-1] for line in lines if line[2:3] == ["OpConstant"]}
    assert [values[operand] for operand in barrier] == ["2", "2", str(0x108)]


def test_capabilities_follow_from_what_is_used() -> None:
    def capabilities(kernel: Kernel, target: Target) -> set[str]:
        lines = text_of(kernel, target).splitlines()
        return {line.split()[1] for line in lines if "OpCapability" in line}

    assert capabilities(stored(Scalar.F32, 4), PLAIN) == {"Shader"}
    assert capabilities(stored(Scalar.U8, 4), PLAIN) == {"Shader", "StorageBuffer8BitAccess"}
    moved = capabilities(stored(Scalar.F16, 4), PLAIN)
    assert moved == {"Shader", "StorageBuffer16BitAccess"}
    assert "Float16" not in capabilities(stored(Scalar.F16, 4), FULL)  # only moved
    assert "Float16" in capabilities(floats(Scalar.F16), FULL)


@pytest.mark.parametrize("fn", ["exp", "fma", "add", "shared", "dot", "cast"])
def test_f16_arithmetic_is_refused_where_there_is_none(fn: str) -> None:
    k = Builder("half", (1, 1, 1))
    src, dst = k.buffer("src", Scalar.F16, 4, "read"), k.buffer("dst", Scalar.F16, 1, "write")
    x = k.load(src, 0)
    if fn == "shared":
        tile = k.shared("tile", F16, 1)
        k.store_shared(tile, 0, x.lane(0))
    elif fn == "cast":
        k.store(dst, 0, k.cast(k.cast(x.lane(0), Scalar.F32) + 1.0, Scalar.F16))
    elif fn == "add":
        k.store(dst, 0, (x + x).lane(0))
    elif fn == "dot":
        k.store(dst, 0, k.dot(x, x))
    else:
        k.store(dst, 0, k.call(fn, *[x] * (3 if fn == "fma" else 1)).lane(0))
    if fn == "shared":
        k.store(dst, 0, x.lane(0))
    with pytest.raises(KernelError, match=r"kernel half: .*f16.*F32"):
        module_of(k.build(), PLAIN)


@pytest.mark.parametrize("scalar", [Scalar.F16, Scalar.I8, Scalar.U8, Scalar.I16])
def test_narrow_storage_is_refused_where_there_is_none(scalar: Scalar) -> None:
    bare = Target(f16_storage=False, int8_storage=False)
    with pytest.raises(KernelError, match=f"buffer src of {scalar.value}.*storage"):
        module_of(stored(scalar, 4), bare)


#: An op's first sample is compiled in each precision and the others in one, by turns: a rule has
#: its ways for a precision whatever the sizes are. With TFLGPU_TEST_EVERYTHING=1 all are in each.
EVERYTHING = bool(os.environ.get("TFLGPU_TEST_EVERYTHING"))


def _dispatched(op: OpDef, precision: Precision, caps: DeviceCaps) -> Iterator[Kernel]:
    target, turn = CompileTarget.plain(caps, precision), list(Precision).index(precision)
    for at, sample in enumerate(op.samples()):
        if not (EVERYTHING or at == 0 or at % len(Precision) == turn):
            continue
        case = materialize(op, sample, half=precision is not Precision.F32)
        if target.refusal(case.node) is None:
            plan = plan_of([case.node], case.graph.inputs, case.graph.outputs, target)
            yield from (dispatch.kernel for dispatch in plan.dispatches)


_RULES = CompileTarget.plain(DeviceCaps(), Precision.F32).kernels.ops
OPS = [op for op in builtin_ops().values() if op.name in _RULES]


@pytest.mark.parametrize("op", OPS, ids=lambda op: str(op.name))
def test_the_kernels_of_every_op_are_valid(validate: Validate, op: OpDef) -> None:
    count = 0
    for precision in Precision:
        half = precision is Precision.F16
        caps = DeviceCaps(max_bindings=32, f16_arithmetic=half, is_gpu=not half)
        made = _dispatched(op, precision, caps)
        count += validate(module_of(kernel, FULL if half else PLAIN) for kernel in made)
    if not count:
        pytest.skip(f"every sample of {op.name} stays on the CPU")


def test_a_scalar_condition_chooses_whole_vectors(validate: Validate) -> None:
    k = Builder("whole", (1, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    k.store(dst, 0, k.select(k.group_id(0) > 0, k.const(1.0, F32x4), k.splat(k.cast(
        k.group_id(1), Scalar.F32), 4)))  # fmt: skip
    assert validate([module_of(k.build(), PLAIN)]) == 1
