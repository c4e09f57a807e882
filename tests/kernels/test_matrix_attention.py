"""Attention on matrix tiles: on the kernel interpreter, which also refuses races and accesses out
of bounds, and on the devices that have them. Expected values are the reference's, in f64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of as plan_of_nodes
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph
from tflgpu.kernels.attention_matrix import build_attention
from tflgpu.kernels.attention_tiles import Parts, attention_tiles, choose_attention_tile
from tflgpu.kernels.attention_whole import WholeTile, build_whole, fills_once, tiles_on
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.matrix import has_matrices
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering, Precision
from tflgpu.lowering.rule import KernelRule
from tflgpu.ops.attention import Attention, AttentionSizes, PackedRows
from tflgpu.ops.base import Operand
from tflgpu.ops.registry import builtin_ops

from tests.running import by_plan

OP = builtin_ops()["ATTENTION"]
HALVES = (Precision.F16, Precision.F32_F16)
#: Normalized root mean square errors. F16 rounds shares and the result; the two f16 values of an
#: operand have 22 bits.
BOUNDS = {Precision.F16: 4e-4, Precision.F32_F16: 7e-7}
GPU = DeviceCaps(
    f16_arithmetic=True, is_gpu=True, cache_bytes=1 << 30, shared_bytes=48 << 10,
    subgroup_shuffle=32, matrix_tiles=True, compute_units=132, vendor="nvidia",
)  # fmt: skip


@attrs.frozen
class Case:
    """Sizes by the names of `tflgpu.ops.attention`, and the shape of a mask."""

    sizes: AttentionSizes
    attributes: Attention
    mask: tuple[int, ...] | None = None
    mask_type: DType = DType.F32
    packed: bool = False

    def __str__(self) -> str:
        return "_".join(map(str, attrs.astuple(self.sizes)))


def case(
    *sizes: int, mask: tuple[int, ...] | None = None, mask_type: DType = DType.F32,
    packed: bool = False, **more: Any,
) -> Case:  # fmt: skip
    """Of items, queries, keys, heads, heads of keys, depth and width."""
    return Case(AttentionSizes(*sizes), Attention(0.5, **more), mask, mask_type, packed)


TURNED = {"heads_first": True, "tokens_last": True}
CASES = [
    case(1, 197, 197, 2, 2, 64, 64, packed=True),
    case(2, 33, 33, 3, 3, 12, 12, packed=True, heads_first=True),
    case(2, 17, 1, 1, 1, 16, 16),  # one key
    case(1, 16, 15, 1, 1, 1, 1),  # one number
    case(1, 33, 65, 4, 2, 5, 37, mask=(1, 4, 33, 65), cap=2.0),
    case(1, 20, 150, 3, 3, 80, 80, **TURNED),
    case(1, 17, 131, 2, 1, 33, 35, mask=(1, 1, 1, 131), mask_type=DType.BOOL, **TURNED),
    case(1, 16, 300, 2, 1, 130, 12, heads_first=True),
    case(2, 40, 33, 2, 1, 24, 40, mask=(33,), causal=True),
    case(1, 3, 500, 12, 1, 64, 64),  # rows of several heads
    case(1, 18, 40, 1, 1, 160, 256),
    case(2, 31, 131, 2, 2, 32, 32, mask=(2, 1, 31, 131), mask_type=DType.BOOL, fill=-np.inf),
]


def operands(case: Case, *, half: bool) -> tuple[Attention, list[Array]]:
    """What a node has: attributes, and arrays, which f16 holds where ``half``."""
    rng, sizes, attributes = np.random.default_rng(3), case.sizes, case.attributes
    shapes = sizes.operands(attributes)[:3]
    if case.packed:
        t, n = sizes.queries, sizes.heads
        steps = (t * 3 * n, 1, 3 * n) if attributes.heads_first else (t * 3 * n, 3 * n, 1)
        q, k, v = (PackedRows(shape, i * n, steps) for i, shape in enumerate(shapes))
        attributes = attrs.evolve(attributes, rows=(q, k, v))
        shapes = ((sizes.items, t, 3, n, sizes.depth),) * 3
    arrays = [rng.uniform(-2, 2, shape).astype(np.float32) for shape in shapes]
    arrays = arrays[:1] * 3 if case.packed else arrays
    if case.mask is not None and case.mask_type is DType.BOOL:
        arrays.append(rng.random(case.mask) < 0.6)
    elif case.mask is not None:
        arrays.append(rng.uniform(-3, 1, case.mask).astype(np.float32))
    if half:
        floats = (a.astype(np.float16).astype(np.float32) for a in arrays if a.dtype != np.bool_)
        arrays = [*floats, *(a for a in arrays if a.dtype == np.bool_)]
    return attributes, arrays


def plan_of(
    attributes: Attention, arrays: list[Array], precision: Precision, caps: DeviceCaps,
    alignment: int, build: Callable[[Lowering], None] | None = None, *, negated: bool = False,
) -> Plan:  # fmt: skip
    """``negated``: floats are made by other kernels, and lie as these leave them."""
    graph = Graph()
    given = values = [graph.add_value(a.shape, DType.from_numpy(a.dtype)) for a in arrays]
    if negated:
        values = [graph.add_value(v.shape, v.dtype) if v.dtype.is_float else v for v in given]
        for source, value in zip(given, values, strict=True):
            if value is not source:
                graph.add_node("NEG", None, [source], [value])
    [spec] = OP.infer(attributes, [Operand(value.spec) for value in values])
    made = graph.add_value(spec.shape, spec.dtype)
    graph.inputs, graph.outputs = given, [made]
    graph.add_node("ATTENTION", attributes, values, [made])
    rules = [KernelRule("ATTENTION", "test", build, rank=1000)] if build else []
    target = Target.plain(caps, precision, rules=rules, alignment=alignment)
    return plan_of_nodes(graph.nodes, graph.inputs, graph.outputs, target)


def run(device: Device, plan: Plan, arrays: list[Array]) -> Array:
    return by_plan(device, plan, *arrays)[0].astype(np.float64)


def expected(attributes: Attention, arrays: list[Array]) -> Array:
    wide = [a if a.dtype == np.bool_ else a.astype(np.float64) for a in arrays]
    with np.errstate(invalid="ignore", over="ignore"):
        [made] = OP.reference(attributes, wide)
    return np.asarray(made, np.float64)


def compare(found: Array, wanted: Array, bound: float) -> None:
    """NaN in the same places, and all else within a normalized error."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    found, wanted = np.nan_to_num(found), np.nan_to_num(wanted)
    assert np.linalg.norm(found - wanted) <= bound * np.linalg.norm(wanted)


def interpreted(device: Device, attributes: Attention, arrays: list[Array], p: Precision) -> Array:
    plan = plan_of(attributes, arrays, p, GPU, device.alignment)
    assert all(has_matrices(d.kernel) for d in plan.dispatches)
    return run(device, plan, arrays)


@pytest.mark.parametrize("precision", HALVES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_form(device: Device, case: Case, precision: Precision) -> None:
    attributes, arrays = operands(case, half=precision is Precision.F16)
    found = interpreted(device, attributes, arrays, precision)
    compare(found, expected(attributes, arrays), BOUNDS[precision])


@pytest.mark.parametrize("precision", HALVES, ids=str)
@pytest.mark.parametrize("turned", [{}, TURNED], ids=["tokens", "numbers"])
def test_every_tile(device: Device, turned: dict[str, bool], precision: Precision) -> None:
    made = case(1, 150, 150, 2, 1, 40, 24, mask=(150,), **turned)
    attributes, arrays = operands(made, half=precision is Precision.F16)
    parts = Parts.of(precision, [Scalar.F32] * 3)
    best = choose_attention_tile(made.sizes, parts, GPU, turned=bool(turned))
    assert best is not None
    tiles = attention_tiles(best, made.sizes, parts, GPU)
    assert len(tiles) > 3
    tiles += [attrs.evolve(best, subgroups=n, keys=m) for n, m in ((4, 1), (2, 3), (1, 2))]
    tiles += [attrs.evolve(best, rows=n, keys=2) for n in (2, 4)]
    for tile in tiles:
        plan = plan_of(
            attributes, arrays, precision, GPU, device.alignment,
            partial(build_attention, tile=tile, parts=parts),
        )  # fmt: skip
        kernel = plan.dispatches[0].kernel
        assert kernel.workgroup[0] == tile.threads
        sizes = [a.count * a.type.width * a.type.scalar.itemsize for a in kernel.shared]
        assert sum(sizes) == tile.shared_bytes(parts)
        found = run(device, plan, arrays)
        compare(found, expected(attributes, arrays), BOUNDS[precision])


#: Of whole tiles.
WHOLE_CASES = [
    case(1, 197, 197, 2, 2, 64, 64, packed=True),
    case(2, 33, 33, 3, 3, 32, 32, packed=True, heads_first=True),
    case(2, 17, 1, 1, 1, 16, 16),  # one key
    case(1, 33, 65, 4, 2, 16, 64, mask=(1, 4, 33, 65), cap=2.0),
    case(1, 3, 150, 12, 1, 64, 64),  # rows of several heads
    case(1, 16, 90, 1, 1, 48, 128),
    case(2, 40, 33, 2, 1, 32, 32, mask=(33,), causal=True),
    case(2, 31, 131, 2, 2, 32, 32, mask=(2, 1, 31, 131), mask_type=DType.BOOL, fill=-np.inf),
]


def at_once(
    device: Device, attributes: Attention, arrays: list[Array], tile: WholeTile | None = None
) -> Array:
    """With all keys of a head at once: the result of the operands negated."""
    build = None if tile is None else partial(build_whole, tile=tile)
    given = [a if a.dtype == np.bool_ else -a for a in arrays]
    plan = plan_of(attributes, given, Precision.F16, GPU, device.alignment, build, negated=True)
    assert plan.dispatches[-1].kernel.name == "attention_whole"
    return run(device, plan, given)


@pytest.mark.parametrize("case", WHOLE_CASES, ids=str)
def test_all_keys_at_once(device: Device, case: Case) -> None:
    attributes, arrays = operands(case, half=True)
    tiles = tiles_on(GPU, case.sizes)
    assert tiles
    for tile in (None, *tiles):
        found = at_once(device, attributes, arrays, tile)
        compare(found, expected(attributes, arrays), BOUNDS[Precision.F16])


@pytest.mark.parametrize("operand", range(4), ids=["query", "keys", "values", "mask"])
def test_a_nan_beside_all_keys_at_once(device: Device, operand: int) -> None:
    special = case(2, 19, 70, 2, 2, 16, 32, mask=(2, 2, 19, 70))
    attributes, arrays = operands(special, half=True)
    flat = arrays[operand].reshape(-1)
    flat[[0, len(flat) // 2 + 7, -1]] = np.nan
    found, wanted = at_once(device, attributes, arrays), expected(attributes, arrays)
    assert 0 < np.isnan(wanted).sum() < wanted.size
    compare(found, wanted, BOUNDS[Precision.F16])


def test_the_last_of_all_values_is_infinite(device: Device) -> None:
    attributes, arrays = operands(case(1, 16, 21, 1, 1, 16, 16), half=True)
    arrays[2][:, 20] = np.inf
    assert np.isposinf(at_once(device, attributes, arrays)).all()


@pytest.mark.parametrize("lowest", [-np.inf, -128])
def test_queries_without_any_of_all_keys(device: Device, lowest: float) -> None:
    attributes, arrays = operands(case(1, 19, 70, 2, 2, 16, 32, mask=(1, 2, 19, 70)), half=True)
    arrays[3][:, :, 5:] = lowest
    arrays[3][0, 1, :4, 3:] = lowest
    found, wanted = at_once(device, attributes, arrays), expected(attributes, arrays)
    assert np.isnan(wanted).any() == np.isinf(lowest)
    compare(found, wanted, BOUNDS[Precision.F16])


@pytest.mark.parametrize(
    "made",
    [case(1, 16, 20, 1, 1, 12, 16), case(1, 16, 20, 1, 1, 16, 20), case(1, 16, 400, 1, 1, 64, 64)],
    ids=["depth", "width", "keys"],
)
def test_keys_that_are_not_all_there_at_once(device: Device, made: Case) -> None:
    attributes, arrays = operands(made, half=True)
    plan = plan_of(attributes, arrays, Precision.F16, GPU, device.alignment, negated=True)
    assert plan.dispatches[-1].kernel.name == "attention_matrix"
    small, given = operands(case(1, 16, 20, 1, 1, 16, 16), half=True)
    for precision, negated in ((Precision.F32_F16, True), (Precision.F16, False)):
        plan = plan_of(small, given, precision, GPU, device.alignment, negated=negated)
        assert plan.dispatches[-1].kernel.name == "attention_matrix"


def test_many_workgroups_go_through_keys_by_blocks() -> None:
    made = case(32, 197, 197, 12, 12, 64, 64, packed=True)
    [whole, *_] = tiles_on(GPU, made.sizes)
    assert not fills_once(whole, made.sizes, GPU)
    assert fills_once(whole, attrs.evolve(made.sizes, items=1), GPU)


@pytest.mark.parametrize("precision", HALVES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_form_on_a_device(matrix_device: Device, case: Case, precision: Precision) -> None:
    attributes, arrays = operands(case, half=precision is Precision.F16)
    caps = attrs.evolve(matrix_device.caps, cache_bytes=1 << 30)
    plan = plan_of(attributes, arrays, precision, caps, matrix_device.alignment)
    assert all(has_matrices(d.kernel) for d in plan.dispatches)
    found = run(matrix_device, plan, arrays)
    compare(found, expected(attributes, arrays), 2 * BOUNDS[precision])
    np.testing.assert_array_equal(found, run(matrix_device, plan, arrays))


SPECIAL = case(2, 19, 70, 2, 2, 20, 36, mask=(2, 2, 19, 70))


@pytest.mark.parametrize("precision", HALVES, ids=str)
@pytest.mark.parametrize("operand", range(4), ids=["query", "keys", "values", "mask"])
def test_a_nan_goes_where_it_should(device: Device, operand: int, precision: Precision) -> None:
    attributes, arrays = operands(SPECIAL, half=precision is Precision.F16)
    flat = arrays[operand].reshape(-1)
    flat[[0, len(flat) // 2 + 7, -1]] = np.nan
    found, wanted = interpreted(device, attributes, arrays, precision), expected(attributes, arrays)
    assert 0 < np.isnan(wanted).sum() < wanted.size
    compare(found, wanted, BOUNDS[precision])


@pytest.mark.parametrize("turned", [{}, TURNED], ids=["tokens", "numbers"])
def test_the_last_value_is_infinite(device: Device, turned: dict[str, bool]) -> None:
    """What is read past it is no part of the sum: a share of 0 would make a NaN of it."""
    attributes, arrays = operands(case(1, 16, 21, 1, 1, 16, 16, **turned), half=True)
    np.moveaxis(arrays[2], 3 if turned else 1, 0)[20] = np.inf
    found = interpreted(device, attributes, arrays, Precision.F16)
    assert np.isposinf(found).all()


@pytest.mark.parametrize("precision", HALVES, ids=str)
@pytest.mark.parametrize("lowest", [-np.inf, -128])
def test_queries_without_keys(device: Device, lowest: float, precision: Precision) -> None:
    """NaN, where nothing is left; keys that a number excludes weigh the same."""
    attributes, arrays = operands(SPECIAL, half=precision is Precision.F16)
    arrays[3][:, :, 5:] = lowest  # no key at all
    arrays[3][0, 1, :4, 3:] = lowest  # the first block has some, others none
    arrays[3][1, 0, :4, :66] = lowest  # only the last has some
    found, wanted = interpreted(device, attributes, arrays, precision), expected(attributes, arrays)
    assert np.isnan(wanted).any() == np.isinf(lowest)
    compare(found, wanted, max(BOUNDS[precision], 1e-5))  # f32 rounds 128 to 1.5e-5


@pytest.mark.parametrize("precision", HALVES, ids=str)
def test_scores_far_apart(device: Device, precision: Precision) -> None:
    """The largest so far grows from block to block, and shrinks never."""
    attributes, arrays = operands(case(1, 32, 300, 1, 1, 16, 16), half=False)
    arrays[0][...], arrays[1][...] = 1, 0
    steps = np.arange(300) / 4.0
    arrays[1][0, :, 0, 0] = np.where(np.arange(300) % 2, steps, -steps)
    arrays[0][0, ::2] = -1
    found = interpreted(device, attributes, arrays, precision)
    compare(found, expected(attributes, arrays), 2e-3 if precision is Precision.F16 else 1e-6)


@pytest.mark.parametrize(("change", "caps", "precision"), [
    ({}, {}, Precision.F32), ({}, {"matrix_tiles": False}, Precision.F16),
    ({}, {"subgroup_shuffle": 16}, Precision.F16), ({}, {"shared_bytes": 1 << 12}, Precision.F16),
    ({}, {"vendor": ""}, Precision.F32_F16), ({"queries": 15}, {}, Precision.F16),
    ({"depth": 300}, {}, Precision.F16), ({"width": 300}, {}, Precision.F16),
])  # fmt: skip
def test_who_has_no_use_for_tiles(
    device: Device, change: dict[str, int], caps: dict[str, Any], precision: Precision
) -> None:
    made = case(*attrs.astuple(attrs.evolve(AttentionSizes(1, 16, 20, 1, 1, 16, 16), **change)))
    attributes, arrays = operands(made, half=True)
    found = attrs.evolve(GPU, **caps)
    plan = plan_of(attributes, arrays, precision, found, device.alignment)
    assert not any(has_matrices(d.kernel) for d in plan.dispatches)
    plan = plan_of(*operands(case(1, 16, 20, 1, 1, 16, 16), half=True), Precision.F16, GPU, 1)
    assert all(has_matrices(d.kernel) for d in plan.dispatches)
