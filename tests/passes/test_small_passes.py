"""merge_moves, square, global_pool, join_pixels."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.ir.graph import Value
from tflgpu.passes import (
    dequantize_constants,
    fold_constants,
    global_pool,
    join_pixels,
    merge_moves,
    remove_noops,
    square,
)
from tflgpu.passes.remove_noops import PASS

from tests.passes.harness import CONTEXT, RELU, Maker, check, names, only


@pytest.mark.parametrize("second", list(permutations(range(3))))
def test_two_transposes_become_one(second: tuple[int, ...], g: Maker) -> None:
    y = g.op("TRANSPOSE", g.op("TRANSPOSE", g.input(2, 3, 5), g.ints(2, 0, 1)), g.ints(*second))
    after = check(g.done(g.op("ABS", y)), [merge_moves.PASS, remove_noops.PASS], rtol=0)
    assert names(after) == ["TRANSPOSE", "ABS"][second == (1, 2, 0) :]
    if second not in ((1, 2, 0), (0, 1, 2)):  # nothing is left, or nothing to merge
        assert after.nodes[0].origins == (0, 1)


def test_a_transpose_and_its_inverse_vanish(g: Maker) -> None:
    y = g.op("TRANSPOSE", g.op("TRANSPOSE", g.input(2, 3, 5), g.ints(2, 0, 1)), g.ints(1, 2, 0))
    after = check(g.done(g.op("ABS", y)), [merge_moves.PASS, remove_noops.PASS], rtol=0)
    assert names(after) == ["ABS"]


def test_a_transpose_that_others_read_stays_for_them(g: Maker) -> None:
    x = g.op("TRANSPOSE", g.input(2, 3, 5), g.ints(2, 0, 1))
    graph = g.done(g.op("ABS", x), g.op("TRANSPOSE", x, g.ints(1, 0, 2)))
    after = check(graph, merge_moves.PASS, rtol=0)
    assert names(after) == ["TRANSPOSE", "ABS", "TRANSPOSE"]
    assert after.nodes[2].input(0) is after.inputs[0]


def test_a_product_with_itself_is_a_square(g: Maker) -> None:
    x = g.input(2, 3)
    assert names(check(g.done(g.op("MUL", x, x)), square.PASS, rtol=0)) == ["SQUARE"]


def test_other_products_stay(g: Maker) -> None:
    x, i = g.input(2, 3), g.input(2, 3, dtype=DType.I32)
    graph = g.done(g.op("MUL", x, g.op("ABS", x)), g.op("MUL", x, x, **RELU), g.op("MUL", i, i))
    assert names(check(graph, square.PASS)) == names(graph)


@pytest.mark.parametrize(
    ("height", "width", "padding", "stride"), [(5, 7, 1, 1), (5, 7, 0, 9), (9, 9, 0, 8)]
)
def test_an_average_over_the_image_is_a_mean(
    height: int, width: int, padding: int, stride: int, g: Maker
) -> None:
    y = g.op("AVERAGE_POOL_2D", g.input(2, 5, 7, 6), filter_height=height, filter_width=width,
             stride_h=stride, stride_w=stride, padding=padding)  # fmt: skip
    after = check(g.done(y), global_pool.PASS)
    covers = height + width == 12 or height == 9
    assert names(after) == (["MEAN"] if covers else ["AVERAGE_POOL_2D"])


@pytest.mark.parametrize("fields", [{"filter_width": 6}, RELU, {"padding": 0, "filter_height": 4}])
def test_other_averages_stay(fields: dict[str, int], g: Maker) -> None:
    options = {"filter_height": 5, "filter_width": 7, "stride_h": 9, "stride_w": 9, "padding": 1}
    graph = g.done(g.op("AVERAGE_POOL_2D", g.input(2, 5, 7, 6), **{**options, **fields}))
    assert only(check(graph, global_pool.PASS), "AVERAGE_POOL_2D")


# Nodes that hand on an operand's elements, and others that look as if they did.


Make = Callable[[Maker, Value], Value]

SHAPE = (1, 3, 5, 4)
ZEROS = [[0, 0]] * 4


def resize(op: str, **fields: Any) -> Make:
    return lambda g, x: g.op(op, x, g.ints(3, 5), **fields)


GONE: dict[str, Make] = {
    "reshape": lambda g, x: g.op("RESHAPE", x, g.ints(*SHAPE)),
    "squeeze": lambda g, x: g.op("SQUEEZE", g.op("EXPAND_DIMS", x, g.ints(0)), squeeze_dims=[0]),
    "slice": lambda g, x: g.op("SLICE", x, g.ints(0, 0, 0, 0), g.ints(1, -1, 5, 4)),
    "strided": lambda g, x: g.op(
        "STRIDED_SLICE", x, g.ints(0, 0, 0, 0), g.ints(1, 3, 5, 4), g.ints(1, 1, 1, 1)
    ),
    "strided_masks": lambda g, x: g.op(
        "STRIDED_SLICE", x, g.ints(0, 1, 2, 3), g.ints(0, 0, 0, 0), g.ints(-1, 1, 1, 1),
        begin_mask=15, end_mask=15,
    ),
    "transpose": lambda g, x: g.op("TRANSPOSE", x, g.ints(0, 1, 2, 3)),
    "pad": lambda g, x: g.op("PAD", x, g.ints(*ZEROS)),
    "pad_v2": lambda g, x: g.op("PADV2", x, g.ints(*ZEROS), g.const([3.0])),
    "mirror_pad": lambda g, x: g.op("MIRROR_PAD", x, g.ints(*ZEROS), mode=0),
    "tile": lambda g, x: g.op("TILE", x, g.ints(1, 1, 1, 1)),
    "concat": lambda g, x: g.op("CONCATENATION", x, axis=3),
    "split": lambda g, x: g.op("SPLIT", g.ints(3), x, num_splits=1),
    "add_n": lambda g, x: g.op("ADD_N", x),
    "cast": lambda g, x: g.op("CAST", x, out_data_type=DType.F32.tflite),
    "add": lambda g, x: g.op("ADD", x, g.const([0, 0, 0, 0])),
    "add_left": lambda g, x: g.op("ADD", g.const(0), x),
    "sub": lambda g, x: g.op("SUB", x, g.const(0)),
    "mul": lambda g, x: g.op("MUL", x, g.const([1])),
    "div": lambda g, x: g.op("DIV", x, g.const(1)),
    "bilinear": resize("RESIZE_BILINEAR"),
    "bilinear_half": resize("RESIZE_BILINEAR", half_pixel_centers=True),
    "bilinear_align": resize("RESIZE_BILINEAR", align_corners=True),
    "nearest": resize("RESIZE_NEAREST_NEIGHBOR"),
    "nearest_half": resize("RESIZE_NEAREST_NEIGHBOR", half_pixel_centers=True),
    "nearest_align": resize("RESIZE_NEAREST_NEIGHBOR", align_corners=True),
}  # fmt: skip

STAYS: dict[str, Make] = {
    "slice": lambda g, x: g.op("SLICE", x, g.ints(0, 0, 0, 1), g.ints(1, 3, 5, 3)),
    "backwards": lambda g, x: g.op(
        "STRIDED_SLICE", x, g.ints(0, -1, 0, 0), g.ints(1, -9, 5, 4), g.ints(1, -1, 1, 1)
    ),
    "transpose": lambda g, x: g.op("TRANSPOSE", x, g.ints(0, 2, 1, 3)),
    "pad": lambda g, x: g.op("PAD", x, g.ints([0, 0], [1, 0], [0, 0], [0, 0])),
    "tile": lambda g, x: g.op("TILE", x, g.ints(1, 2, 1, 1)),
    "concat": lambda g, x: g.op("CONCATENATION", x, x, axis=1),
    "concat_relu6": lambda g, x: g.op("CONCATENATION", x, axis=1, fused_activation_function=3),
    "add_n": lambda g, x: g.op("ADD_N", x, x),
    "cast": lambda g, x: g.op("CAST", x, out_data_type=DType.I32.tflite),
    "add": lambda g, x: g.op("ADD", x, g.const([0, 0, 0, 1e-9])),
    "add_relu": lambda g, x: g.op("ADD", x, g.const(0), **RELU),
    "add_broadcasts": lambda g, x: g.op("ADD", x, g.const(np.zeros((2, 3, 5, 4)))),
    "sub_from": lambda g, x: g.op("SUB", g.const(0), x),
    "div_by": lambda g, x: g.op("DIV", g.const(1), g.op("EXP", x)),
    "bilinear": lambda g, x: g.op("RESIZE_BILINEAR", x, g.ints(3, 6)),
    "mean": lambda g, x: g.op("MEAN", x, g.ints(1), keep_dims=True),
}  # fmt: skip

RESHAPED: dict[str, Make] = {
    "squeeze": lambda g, x: g.op("SQUEEZE", x, squeeze_dims=[0]),
    "expand": lambda g, x: g.op("EXPAND_DIMS", x, g.ints(2)),
    "transpose": lambda g, x: g.op("TRANSPOSE", x, g.ints(1, 0, 2, 3)),
    "shrink": lambda g, x: g.op(
        "STRIDED_SLICE", x, g.ints(0, 0, 0, 0), g.ints(1, 3, 5, 4), g.ints(1, 1, 1, 1),
        shrink_axis_mask=1,
    ),
    "pack": lambda g, x: g.op("PACK", x, axis=1, values_count=1),
    "unpack": lambda g, x: g.op("UNPACK", x, axis=0, num=1),
    "mean": lambda g, x: g.op("MEAN", x, g.ints(0), keep_dims=False),
    "two": lambda g, x: g.op("RESHAPE", g.op("SQUEEZE", x, squeeze_dims=[]), g.ints(4, 15)),
    "three": lambda g, x: g.op(
        "RESHAPE", g.op("RESHAPE", g.op("EXPAND_DIMS", x, g.ints(0)), g.ints(2, -1)), g.ints(4, -1)
    ),
}  # fmt: skip


def around(make: Make, *, relu_after: bool = True) -> Maker:
    """RELU -> what is made -> RELU, so that nothing is an input or an output of the graph."""
    g = Maker()
    y = make(g, g.op("RELU", g.input(*SHAPE)))
    if not y.dtype.is_float:
        y = g.op("CAST", y, out_data_type=DType.F32.tflite)
    g.done(g.op("ABS", y) if relu_after else y)
    return g


@pytest.mark.parametrize("name", GONE)
def test_gone(name: str) -> None:
    assert names(check(around(GONE[name]).graph, PASS, rtol=0)) == ["RELU", "ABS"]


@pytest.mark.parametrize("name", GONE)
def test_gone_in_front_of_an_output(name: str) -> None:
    after = check(around(GONE[name], relu_after=False).graph, PASS, rtol=0)
    assert names(after) == ["RELU"]
    assert after.nodes[0].outputs == after.outputs


@pytest.mark.parametrize("name", STAYS)
def test_stays(name: str) -> None:
    graph = around(STAYS[name]).graph
    assert names(check(graph, PASS, rtol=0)) == names(graph)


@pytest.mark.parametrize("name", RESHAPED)
def test_becomes_one_reshape(name: str) -> None:
    after = check(around(RESHAPED[name]).graph, PASS, rtol=0)
    assert names(after) == ["RELU", "RESHAPE", "ABS"]


def test_origins_go_to_what_is_left() -> None:
    after = check(around(GONE["pad"]).graph, PASS)
    assert [n.origins for n in after.nodes] == [(0, 1), (2,)]
    after = check(around(RESHAPED["three"]).graph, PASS)
    assert [n.origins for n in after.nodes] == [(0,), (1, 2, 3), (4,)]


def test_between_an_input_and_an_output_a_copy_stays(g: Maker) -> None:
    x = g.input(2, 3)
    graph = g.done(g.op("PAD", x, g.ints([0, 0], [0, 0])))
    after = check(graph, PASS)
    assert len(after.nodes) == 1
    assert after.outputs[0] is not after.inputs[0]


def test_two_outputs_of_the_same_contents_stay_two(g: Maker) -> None:
    y = g.op("RELU", g.input(2, 3))
    z = g.op("SLICE", y, g.ints(0, 0), g.ints(2, 3))
    after = check(g.done(y, z), PASS)
    assert len({v.id for v in after.outputs}) == 2


def test_a_view_that_others_read_stays_for_them(g: Maker) -> None:
    first = g.op("RESHAPE", g.op("RELU", g.input(2, 6)), g.ints(3, 4))
    second = g.op("RESHAPE", first, g.ints(4, 3))
    graph = g.done(g.op("ABS", first), g.op("ABS", second))
    after = check(graph, PASS, rtol=0)
    relu = after.nodes[0].outputs[0]
    assert [n.input(0) for n in after.nodes if n.op == "RESHAPE"] == [relu, relu]


def test_whole_numbers_with_a_scale_are_left_alone(g: Maker) -> None:
    x = g.input(2, 3, dtype=DType.I8)
    x.quant = Quantization((0.5,), (0,))
    y = g.op("RESHAPE", x, g.ints(2, 3))
    y.quant = Quantization((0.25,), (0,))
    z = g.op("RESHAPE", y, g.ints(3, 2))
    assert names(check(g.done(z), PASS)) == ["RESHAPE", "RESHAPE"]


# Constants that fold, and those that had better not.


def test_a_chain_of_constants_folds_whole(g: Maker) -> None:
    scale = g.op("RSQRT", g.op("ADD", g.random(1, 1, 1, 4), g.const(1e-3)))
    after = check(g.done(g.op("MUL", g.input(1, 3, 5, 4), scale)), fold_constants.PASS, rtol=0)
    assert names(after) == ["MUL"]
    assert after.nodes[0].input(1).is_const


def test_a_scalar_stays_a_scalar(g: Maker) -> None:
    graph = g.done(g.op("MUL", g.input(3), g.op("NEG", g.const(2.0))))
    assert check(graph, fold_constants.PASS, rtol=0).nodes[0].const(1).shape == ()


def test_shapes_fold_though_their_operand_is_not_constant(g: Maker) -> None:
    x = g.input(2, 3, 5)
    graph = g.done(g.op("CAST", g.op("SHAPE", x, out_type=DType.I32.tflite), out_data_type=0))
    after = check(graph, fold_constants.PASS, rtol=0)
    assert after.nodes == []
    assert after.outputs[0].data is not None
    assert after.outputs[0].data.tolist() == [2, 3, 5]


def test_what_would_grow_is_left_to_run(g: Maker) -> None:
    graph = g.done(g.op("ADD", g.input(1, 512), g.op("TILE", g.random(1, 1), g.ints(512, 512))))
    assert names(check(graph, fold_constants.PASS)) == ["TILE", "ADD"]
    small = Maker()
    graph = small.done(
        small.op("ADD", small.input(1, 5), small.op("TILE", small.random(1, 1), small.ints(5, 5)))
    )
    assert names(check(graph, fold_constants.PASS)) == ["ADD"]


def test_what_fails_is_left_to_run(g: Maker) -> None:
    ratio = g.op("DIV", g.ints(1, 2), g.ints(1, 0))
    graph = g.done(g.op("ADD", g.input(2, dtype=DType.I32), ratio))
    copy = graph.copy()
    assert fold_constants.PASS.run(copy, CONTEXT) == 0
    assert names(copy) == ["DIV", "ADD"]


def test_numbers_with_a_scale_are_left_alone(g: Maker) -> None:
    stored = g.const([[1, 2]], DType.I8)
    stored.quant = Quantization((0.5,), (0,))
    graph = g.done(g.op("ADD", g.op("RESHAPE", stored, g.ints(2)), g.input(2, dtype=DType.I8)))
    copy = graph.copy()
    assert fold_constants.PASS.run(copy, CONTEXT) == 0


def test_operators_that_are_not_understood_are_left_alone(g: Maker) -> None:
    from tflgpu.ops.unknown import UnknownOp

    y = g.op("NEG", g.const(2.0))
    g.graph.nodes[0].attrs = UnknownOp("too new")
    copy = g.done(y).copy()
    assert fold_constants.PASS.run(copy, CONTEXT) == 0


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_f16_weights_become_f32(shape: tuple[int, ...], g: Maker) -> None:
    stored = g.const(np.full(shape, 1.5), DType.F16)
    graph = g.done(g.op("MUL", g.input(2, 3), g.op("DEQUANTIZE", stored)))
    after = check(graph, dequantize_constants.PASS, rtol=0)
    assert names(after) == ["MUL"]
    weights = after.nodes[0].const(1)
    assert weights.dtype == np.float32
    assert weights.shape == shape


def test_8_bit_weights_become_f32(g: Maker) -> None:
    quant = Quantization((0.5, 0.25), (0, 1), axis=0)
    stored = g.const([[1, 2, 3], [-4, 5, 6]], DType.I8)
    stored.quant = quant
    floats = g.op("DEQUANTIZE", stored, input_quantization=quant)
    after = check(g.done(g.op("MUL", g.input(2, 3), floats)), dequantize_constants.PASS, rtol=0)
    assert after.nodes[0].const(1).tolist() == [[0.5, 1.0, 1.5], [-1.25, 1.0, 1.25]]


def test_a_runtime_dequantize_stays(g: Maker) -> None:
    graph = g.done(g.op("DEQUANTIZE", g.input(2, 3, dtype=DType.F16)))
    assert names(check(graph, dequantize_constants.PASS)) == ["DEQUANTIZE"]


def _patches(g: Maker, x: Value, rows: int, columns: int, **fields: Any) -> Value:
    return g.op(
        "CONV_2D", x, g.random(5, rows, columns, x.shape[3]), g.random(5),
        **{"stride_h": 1, "stride_w": columns, "padding": 1} | fields,
    )  # fmt: skip


@pytest.mark.parametrize("padding", [0, 1])
def test_pixels_of_a_row_that_a_window_sees_alone_are_read_as_one(g: Maker, padding: int) -> None:
    graph = g.done(_patches(g, g.input(2, 7, 12, 3), 3, 4, stride_h=2, padding=padding))
    after = check(graph, join_pixels.PASS)
    assert names(after) == ["RESHAPE", "CONV_2D"]
    assert after.nodes[1].input(0).shape == (2, 7, 3, 12)
    assert after.nodes[0].origins == after.nodes[1].origins


@pytest.mark.parametrize(
    ("shape", "columns", "fields"),
    [
        ((2, 7, 12, 3), 4, {"stride_w": 3}),
        ((2, 7, 13, 3), 4, {}),
        ((2, 7, 12, 4), 4, {}),
        ((2, 7, 12, 3), 3, {}),
        ((2, 7, 12, 3), 2, {"dilation_w_factor": 2}),
    ],
    ids=["windows overlap", "pixels are left", "whole vectors", "no whole vectors", "dilated"],
)
def test_pixels_stay_apart_elsewhere(
    g: Maker, shape: tuple[int, ...], columns: int, fields: dict[str, int]
) -> None:
    graph = g.done(_patches(g, g.input(*shape), 3, columns, **fields))
    assert names(check(graph, join_pixels.PASS)) == ["CONV_2D"]


def test_pixels_of_what_a_model_computes_stay_apart(g: Maker) -> None:
    """They have gaps, which a RESHAPE would have to close."""
    graph = g.done(_patches(g, g.op("ABS", g.input(2, 7, 12, 3)), 3, 4))
    assert names(check(graph, join_pixels.PASS)) == ["ABS", "CONV_2D"]
