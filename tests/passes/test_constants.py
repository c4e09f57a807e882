"""Constants that fold, and those that had better not."""

from __future__ import annotations

import numpy as np
import pytest
from tflgpu.ir.dtypes import DType
from tflgpu.ir.quant import Quantization
from tflgpu.passes import fold_constants, fold_dequantize

from tests.passes.harness import CONTEXT, Maker, check, names


def test_a_chain_of_constants_folds_whole() -> None:
    g = Maker()
    scale = g.op("RSQRT", g.op("ADD", g.random(1, 1, 1, 4), g.const(1e-3)))
    after = check(g.done(g.op("MUL", g.input(1, 3, 5, 4), scale)), fold_constants.PASS, rtol=0)
    assert names(after) == ["MUL"]
    assert after.nodes[0].input(1).is_const


def test_a_scalar_stays_a_scalar() -> None:
    g = Maker()
    graph = g.done(g.op("MUL", g.input(3), g.op("NEG", g.const(2.0))))
    assert check(graph, fold_constants.PASS, rtol=0).nodes[0].const(1).shape == ()


def test_shapes_fold_though_their_operand_is_not_constant() -> None:
    g = Maker()
    x = g.input(2, 3, 5)
    graph = g.done(g.op("CAST", g.op("SHAPE", x, out_type=DType.I32.tflite), out_data_type=0))
    after = check(graph, fold_constants.PASS, rtol=0)
    assert after.nodes == []
    assert after.outputs[0].data is not None
    assert after.outputs[0].data.tolist() == [2, 3, 5]


def test_what_would_grow_is_left_to_run() -> None:
    g = Maker()
    graph = g.done(g.op("ADD", g.input(1, 512), g.op("TILE", g.random(1, 1), g.ints(512, 512))))
    assert names(check(graph, fold_constants.PASS)) == ["TILE", "ADD"]
    small = Maker()
    graph = small.done(
        small.op("ADD", small.input(1, 5), small.op("TILE", small.random(1, 1), small.ints(5, 5)))
    )
    assert names(check(graph, fold_constants.PASS)) == ["ADD"]


def test_what_fails_is_left_to_run() -> None:
    g = Maker()
    ratio = g.op("DIV", g.ints(1, 2), g.ints(1, 0))
    graph = g.done(g.op("ADD", g.input(2, dtype=DType.I32), ratio))
    copy = graph.copy()
    assert fold_constants.run(copy, CONTEXT) == 0
    assert names(copy) == ["DIV", "ADD"]


def test_numbers_with_a_scale_are_left_alone() -> None:
    g = Maker()
    stored = g.const([[1, 2]], DType.I8)
    stored.quant = Quantization((0.5,), (0,))
    graph = g.done(g.op("ADD", g.op("RESHAPE", stored, g.ints(2)), g.input(2, dtype=DType.I8)))
    copy = graph.copy()
    assert fold_constants.run(copy, CONTEXT) == 0


def test_operators_that_are_not_understood_are_left_alone() -> None:
    from tflgpu.ops.unknown import UnknownOp

    g = Maker()
    y = g.op("NEG", g.const(2.0))
    g.graph.nodes[0].attrs = UnknownOp("too new")
    copy = g.done(y).copy()
    assert fold_constants.run(copy, CONTEXT) == 0


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_f16_weights_become_f32(shape: tuple[int, ...]) -> None:
    g = Maker()
    stored = g.const(np.full(shape, 1.5), DType.F16)
    graph = g.done(g.op("MUL", g.input(2, 3), g.op("DEQUANTIZE", stored)))
    after = check(graph, fold_dequantize.PASS, rtol=0)
    assert names(after) == ["MUL"]
    weights = after.nodes[0].const(1)
    assert weights.dtype == np.float32
    assert weights.shape == shape


def test_8_bit_weights_become_f32() -> None:
    g = Maker()
    quant = Quantization((0.5, 0.25), (0, 1), axis=0)
    stored = g.const([[1, 2, 3], [-4, 5, 6]], DType.I8)
    stored.quant = quant
    floats = g.op("DEQUANTIZE", stored, input_quantization=quant)
    after = check(g.done(g.op("MUL", g.input(2, 3), floats)), fold_dequantize.PASS, rtol=0)
    assert after.nodes[0].const(1).tolist() == [[0.5, 1.0, 1.5], [-1.25, 1.0, 1.25]]


def test_a_runtime_dequantize_stays() -> None:
    g = Maker()
    graph = g.done(g.op("DEQUANTIZE", g.input(2, 3, dtype=DType.F16)))
    assert names(check(graph, fold_dequantize.PASS)) == ["DEQUANTIZE"]
