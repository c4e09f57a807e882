"""Typical pieces of real models, written small: what most mutants are made from."""

from __future__ import annotations

from collections.abc import Callable

from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec

from tests.differential.net import Net

_CONV = {"padding": 0, "stride_h": 1, "stride_w": 1}
_Q = (0.05, -3)


def _conv(n: Net, x: int, filters: int, size: int = 1, stride: int = 1, act: int = 0) -> int:
    w = n.weights(filters, size, size, n.tensors[x].shape[-1])
    fields = {**_CONV, "stride_h": stride, "stride_w": stride, "fused_activation_function": act}
    return n.op("CONV_2D", (x, w, n.weights(filters)), fields)


def _depthwise(
    n: Net, x: int, size: int = 3, stride: int = 1, act: int = 0, dilation: int = 1
) -> int:
    c = n.tensors[x].shape[-1]
    fields = {**_CONV, "stride_h": stride, "stride_w": stride, "depth_multiplier": 1,
              "fused_activation_function": act, "dilation_h_factor": dilation,
              "dilation_w_factor": dilation}  # fmt: skip
    return n.op("DEPTHWISE_CONV_2D", (x, n.weights(1, size, size, c), n.weights(c)), fields,
                version=2 if dilation > 1 else 1)  # fmt: skip


def inverted_residual() -> ModelSpec:
    n = Net(1)
    x = n.input(1, 7, 6, 5)
    y = _conv(n, _depthwise(n, _conv(n, x, 9, act=3), act=3), 5)
    return n.model(n.op("ADD", (x, y)))


def strided_stem() -> ModelSpec:
    n = Net(2)
    x = n.input(1, 11, 9, 3)
    x = n.op("PAD", (x, n.const([[0, 0], [0, 1], [0, 1], [0, 0]])))
    x = n.op("CONV_2D", (x, n.weights(6, 3, 3, 3), n.weights(6)),
             {"padding": 1, "stride_h": 2, "stride_w": 2,
             "fused_activation_function": 1})  # fmt: skip
    return n.model(n.op("MAX_POOL_2D", (_depthwise(n, x, stride=2, act=1),),
                        {"padding": 1, "stride_h": 1, "stride_w": 1, "filter_height": 2,
                         "filter_width": 2}))  # fmt: skip


def classifier() -> ModelSpec:
    n = Net(3)
    x = _conv(n, n.input(1, 7, 7, 4), 8, 3, 2, 3)
    x = n.op("AVERAGE_POOL_2D", (x,), {"padding": 1, "stride_h": 2, "stride_w": 2,
                                       "filter_height": 4, "filter_width": 4})  # fmt: skip
    x = n.op("RESHAPE", (x, n.const([1, 8])), {"new_shape": [1, 8]})
    x = n.op("FULLY_CONNECTED", (x, n.weights(10, 8), n.weights(10)))
    return n.model(n.op("SOFTMAX", (x,), {"beta": 1.0}))


def ssd_head() -> ModelSpec:
    n = Net(4)
    a = _conv(n, n.input(1, 4, 4, 5), 6, 3, act=3)
    b = _conv(n, a, 6, 3, 2, 3)
    flat = []
    for x, cells in ((a, 16), (b, 4)):
        y = _conv(n, x, 12)
        flat.append(n.op("RESHAPE", (y, n.const([1, cells * 3, 1, 4])), {}))
    boxes = n.op("CONCATENATION", flat, {"axis": 1})
    y = n.op("SQUEEZE", (boxes,), {"squeeze_dims": [2]})
    return n.model(y, n.op("LOGISTIC", (boxes,)))


def aspp() -> ModelSpec:
    n = Net(5)
    x = n.input(1, 6, 6, 5)
    pooled = n.op("AVERAGE_POOL_2D", (x,), {"padding": 1, "stride_h": 6, "stride_w": 6,
                                            "filter_height": 6, "filter_width": 6})  # fmt: skip
    pooled = n.op("RESIZE_BILINEAR", (_conv(n, pooled, 4, act=1), n.const([6, 6])),
                  {"align_corners": True}, version=3)  # fmt: skip
    b = _conv(n, _depthwise(n, x, dilation=2), 4, act=1)
    y = n.op("CONCATENATION", (pooled, b, _conv(n, x, 4)), {"axis": 3})
    return n.model(n.op("RESIZE_BILINEAR", (_conv(n, y, 3), n.const([13, 12])),
                        {"half_pixel_centers": True}, version=3))  # fmt: skip


def style_residual() -> ModelSpec:
    n = Net(6)
    x = n.input(1, 6, 5, 4)
    y = n.op("MIRROR_PAD", (x, n.const([[0, 0], [1, 1], [1, 1], [0, 0]])), {"mode": 0})
    y = n.op("CONV_2D", (y, n.weights(4, 3, 3, 4), n.weights(4)), {**_CONV, "padding": 1})
    axes = n.const([1, 2])
    mean = n.op("MEAN", (y, axes), {"keep_dims": True})
    spread = n.op("MEAN", (n.op("SQUARED_DIFFERENCE", (y, mean)), axes), {"keep_dims": True})
    scale = n.op("RSQRT", (n.op("ADD", (spread, n.const(1e-3, DType.F32))),))
    scale = n.op("MUL", (scale, n.weights(4)))
    shift = n.op("SUB", (n.weights(4), n.op("MUL", (mean, scale))))
    y = n.op("ADD", (n.op("MUL", (y, scale)), shift), {"fused_activation_function": 1})
    return n.model(n.op("RESIZE_NEAREST_NEIGHBOR", (n.op("ADD", (x, y)), n.const([12, 10]))))


def lstm_cell() -> ModelSpec:
    n = Net(7)
    x, h, c = n.input(1, 5), n.input(1, 4), n.input(1, 4)
    both = n.op("CONCATENATION", (x, h), {"axis": 1})
    gates = n.op("FULLY_CONNECTED", (both, n.weights(16, 9), n.weights(16)))
    i, j, f, o = n.op("SPLIT", (n.const(1), gates), {"num_splits": 4})
    kept = n.op("MUL", (c, n.op("LOGISTIC", (f,))))
    new = n.op("ADD", (kept, n.op("MUL", (n.op("LOGISTIC", (i,)), n.op("TANH", (j,))))))
    return n.model(n.op("MUL", (n.op("TANH", (new,)), n.op("LOGISTIC", (o,)))), new)


def attention() -> ModelSpec:
    n = Net(8)
    x = n.input(1, 6, 8)
    heads = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        y = n.op("FULLY_CONNECTED", (x, n.weights(8, 8), n.weights(8)), {"keep_num_dims": True},
                 version=2)  # fmt: skip
        y = n.op("RESHAPE", (y, n.const([1, 6, 2, 4])))
        heads.append(n.op("TRANSPOSE", (y, n.const(order))))
    q, k, v = heads
    scores = n.op("MUL", (n.op("BATCH_MATMUL", (q, k)), n.const(0.5, DType.F32)))
    y = n.op("BATCH_MATMUL", (n.op("SOFTMAX", (scores,), {"beta": 1.0}), v))
    y = n.op("RESHAPE", (n.op("TRANSPOSE", (y, n.const([0, 2, 1, 3]))), n.const([1, 6, 8])))
    return n.model(n.op("ADD", (x, y)))


def layer_norm() -> ModelSpec:
    n = Net(9)
    x = n.input(2, 5, 7)
    mean = n.op("MEAN", (x, n.const([2])), {"keep_dims": True})
    var = n.op("MEAN", (n.op("SQUARED_DIFFERENCE", (x, mean)), n.const([-1])), {"keep_dims": True})
    scale = n.op("RSQRT", (n.op("ADD", (var, n.const(1e-5, DType.F32))),))
    y = n.op("MUL", (n.op("SUB", (x, mean)), n.op("MUL", (scale, n.weights(7)))))
    y = n.op("ADD", (y, n.weights(7)))
    return n.model(n.op("MUL", (y, n.op("LOGISTIC", (y,)))))


def text() -> ModelSpec:
    n = Net(10)
    x = n.op("GATHER", (n.weights(11, 6), n.input(1, 9, dtype=DType.I32)), {"axis": 0})
    x = n.op("MEAN", (x, n.const([1])), {})
    x = n.op(
        "FULLY_CONNECTED", (x, n.weights(5, 6), n.weights(5)), {"fused_activation_function": 1}
    )
    return n.model(n.op("SOFTMAX", (n.op("FULLY_CONNECTED", (x, n.weights(2, 5), -1)),),
                        {"beta": 1.0}))  # fmt: skip


def upsampling() -> ModelSpec:
    n = Net(11)
    x = _conv(n, n.input(1, 4, 5, 3), 8, 3)
    y = n.op("DEPTH_TO_SPACE", (x,), {"block_size": 2})
    z = n.op("TRANSPOSE_CONV", (n.const([1, 8, 10, 2]), n.weights(2, 3, 3, 8), x),
             {"padding": 0, "stride_h": 2, "stride_w": 2})  # fmt: skip
    y = n.op("PRELU", (n.op("ADD", (y, z)), n.weights(1, 1, 2)))
    return n.model(n.op("MINIMUM", (n.op("RELU", (y,)), n.const(1.0, DType.F32))))


def squeeze_excite() -> ModelSpec:
    n = Net(12)
    x = n.op("HARD_SWISH", (n.input(1, 5, 6, 6),))
    s = n.op("MEAN", (x, n.const([1, 2])), {"keep_dims": True})
    s = n.op("LOGISTIC", (_conv(n, _conv(n, s, 3, act=1), 6),))
    y = n.op("MUL", (x, s))
    return n.model(n.op("STRIDED_SLICE", (y, n.const([0, 0, 1, 0]), n.const([1, 5, 6, 4]),
                                          n.const([1, 2, 1, 1])), {}))  # fmt: skip


def shapes() -> ModelSpec:
    """Shape arithmetic as converters leave it: SHAPE, slices of it, PACK, RESHAPE."""
    n = Net(13)
    x = n.input(2, 3, 4, 5)
    shape = n.op("SHAPE", (x,), {"out_type": 2})
    first = n.op("STRIDED_SLICE", (shape, n.const([0]), n.const([1]), n.const([1])),
                 {"shrink_axis_mask": 1})  # fmt: skip
    target = n.op("PACK", (first, n.const(60)), {"values_count": 2, "axis": 0})
    y = n.op("RESHAPE", (n.op("ABS", (x,)), target), shapes=[[2, 60]])
    return n.model(n.op("SUM", (y, n.const([1])), {}), shape)


def moves() -> ModelSpec:
    n = Net(14)
    x = n.input(2, 3, 5)
    a, b, c = n.op("UNPACK", (x,), {"num": 3, "axis": 1})
    y = n.op("PACK", (c, a, b), {"values_count": 3, "axis": 1})
    y = n.op("TRANSPOSE", (y, n.const([2, 0, 1])))
    y = n.op("SLICE", (y, n.const([1, 0, 0]), n.const([3, -1, 2])))
    y = n.op("TILE", (y, n.const([1, 2, 1])))
    y = n.op("PADV2", (y, n.const([[0, 0], [1, 0], [0, 2]]), n.const(0.5, DType.F32)))
    return n.model(
        n.op("EXPAND_DIMS", (y, n.const(0))), n.op("ARG_MAX", (y, n.const(1)), {"output_type": 2})
    )


def choices() -> ModelSpec:
    n = Net(15)
    x, y = n.input(2, 3, 4), n.input(2, 3, 4)
    more = n.op("GREATER", (x, y))
    z = n.op("SELECT_V2", (more, x, n.op("NEG", (y,))))
    z = n.op("MAXIMUM", (n.op("EXP", (n.op("MINIMUM", (z, y)),)), x))
    whole = n.op(
        "CAST", (z,), {"in_data_type": 0, "out_data_type": 2}, dtype=DType.I32, shapes=[[2, 3, 4]]
    )
    return n.model(n.op("SQRT", (n.op("SQUARE", (z,)),)), n.op("FLOOR_MOD", (whole, n.const(3))))


def half_weights() -> ModelSpec:
    n = Net(16)

    def half(*shape: int) -> int:
        w = n.weights(*shape, dtype=DType.F16)
        return n.op("DEQUANTIZE", (w,), version=3, shapes=[shape])

    x = n.input(1, 6, 7, 3)
    y = n.op("CONV_2D", (x, half(8, 3, 3, 3), half(8)), {**_CONV, "fused_activation_function": 1})
    y = n.op("DEPTHWISE_CONV_2D", (y, half(1, 3, 3, 8), half(8)), {**_CONV, "depth_multiplier": 1})
    return n.model(n.op("ADD", (y, _conv(n, x, 8))))


def dynamic_range() -> ModelSpec:
    n = Net(17)
    x = n.input(2, 9)
    y = n.op(
        "FULLY_CONNECTED", (x, n.whole_weights(5, 9), n.weights(5)), shapes=[[2, 5]], version=3
    )
    return n.model(n.op("TANH", (y,)))


def _whole(dtype: DType, axis: int | None) -> ModelSpec:
    n = Net(18)
    zero = 128 if dtype is DType.U8 else 0
    q = (_Q[0], _Q[1] + zero)
    x = n.input(1, 6, 5, 4, dtype=dtype, quant=q)
    w = n.whole_weights(6, 3, 3, 4, axis=None if axis is None else 0, dtype=dtype)
    y = n.op("CONV_2D", (x, w, n.whole_bias(6, x, w)), {**_CONV, "fused_activation_function": 3},
             version=3, quant=(6 / 255, zero - 128), dtype=dtype)  # fmt: skip
    w = n.whole_weights(1, 3, 3, 6, axis=None if axis is None else 3, dtype=dtype)
    z = n.op("DEPTHWISE_CONV_2D", (y, w, n.whole_bias(6, y, w)), {**_CONV, "depth_multiplier": 1},
             version=3, quant=(0.1, zero), dtype=dtype)  # fmt: skip
    s = n.op("ADD", (y, z), {}, version=2, quant=(0.12, zero + 7), dtype=dtype)
    m = n.op("MEAN", (s, n.const([1, 2])), {"keep_dims": False}, version=2, quant=(0.1, zero),
             dtype=dtype)  # fmt: skip
    w = n.whole_weights(7, 6, axis=None, dtype=dtype)
    f = n.op("FULLY_CONNECTED", (m, w, n.whole_bias(7, m, w)), {}, version=4, quant=(0.1, zero),
             dtype=dtype)  # fmt: skip
    p = n.op("SOFTMAX", (f,), {"beta": 1.0}, version=2, quant=(1 / 256, zero - 128), dtype=dtype)
    out = n.op("DEQUANTIZE", (p,), {}, version=2, shapes=[[1, 7]])
    return n.model(out, s)


def whole_i8() -> ModelSpec:
    return _whole(DType.I8, 0)


def whole_i8_tensor() -> ModelSpec:
    return _whole(DType.I8, None)


def whole_u8() -> ModelSpec:
    return _whole(DType.U8, None)


def float_edges() -> ModelSpec:
    n = Net(19)
    x = n.input(1, 5, 6, 3)
    q = n.op("QUANTIZE", (x,), {}, quant=(0.02, 3), dtype=DType.I8, shapes=[[1, 5, 6, 3]])
    w = n.whole_weights(4, 1, 1, 3, axis=0)
    y = n.op(
        "CONV_2D", (q, w, n.whole_bias(4, q, w)), _CONV, version=3, quant=(0.03, -5), dtype=DType.I8
    )
    y = n.op("LOGISTIC", (y,), {}, version=2, quant=(1 / 256, -128), dtype=DType.I8)
    return n.model(n.op("DEQUANTIZE", (y,), {}, version=2, shapes=[[1, 5, 6, 4]]))


def integers() -> ModelSpec:
    n = Net(20)
    x = n.input(2, 5, dtype=DType.I32)
    y = n.op("MUL", (n.op("ADD", (x, n.const([1, 2, 3, 4, 5]))), x))
    y = n.op("SUB", (y, n.op("MAXIMUM", (x, n.const(2)))))
    z = n.op("EQUAL", (y, x))
    picked = n.op("GATHER", (y, n.const([1, 0, 1])), {"axis": 0})
    return n.model(y, n.op("LOGICAL_NOT", (z,)), n.op("CUMSUM", (picked, n.const(1)), {}))


RECIPES: tuple[Callable[[], ModelSpec], ...] = (
    inverted_residual, strided_stem, classifier, ssd_head, aspp, style_residual, lstm_cell,
    attention, layer_norm, text, upsampling, squeeze_excite, shapes, moves, choices, half_weights,
    dynamic_range, whole_i8, whole_i8_tensor, whole_u8, float_edges, integers,
)  # fmt: skip


def all_recipes() -> dict[str, ModelSpec]:
    """Every recipe by its name."""
    return {make.__name__: make() for make in RECIPES}
