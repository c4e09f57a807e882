"""Text models whose sequences have any length."""

from __future__ import annotations

from typing import Any

import numpy as np
from tflgpu.ir.dtypes import DType

from tests.small_models import small_model, tensor_of

WORDS, LONGEST, WIDTH, HEADS = 50, 600, 12, 3
KEEP = {"keep_num_dims": True, "fused_activation_function": 0}
#: Options of TFLite's types, as CAST has them.
F32, I32 = 0, 2


def sequence(dtype: DType = DType.I32, *more: int) -> Any:
    """An input [1, any, ...]."""
    return tensor_of((1, 1, *more), dtype, shape_signature=(1, -1, *more))


def encoder(layers: int = 1, width: int = WIDTH, heads: int = HEADS, seed: int = 0) -> bytes:
    """A transformer over ids and a mask, with a table of positions; its hidden states, averages
    with and without the mask, the largest numbers, and the row of the first token."""
    rng = np.random.default_rng(seed)
    depth = width // heads

    def weights(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32) / np.sqrt(np.float32(shape[-1]))

    def ints(*data: Any) -> Any:
        return np.array(data, np.int32)

    row, seq = (1, 1), (1, 1, width)
    tensors: dict[str, Any] = {
        "ids": sequence(), "mask": sequence(), "table": weights(WORDS, width),
        "places": weights(LONGEST, width), "shape": tensor_of((2,), DType.I32),
        "b1": ints(1), "e2": ints(2), "s1": ints(1), "length": tensor_of((), DType.I32),
        "width": ints(width)[0], "size": tensor_of((2,), DType.I32), "zeros": ints(0, 0),
        "here": (1, width), "words": seq, "x0": seq, "m": row, "one": np.float32(1), "off": row,
        "far": np.float32(-1e4), "gone": row, "wide": ints(1, 1, 1, -1), "bias": (1, 1, 1, 1),
        "split": ints(1, -1, heads, depth), "turn": ints(0, 2, 1, 3), "join": ints(1, -1, width),
        "scale": np.float32(depth**-0.5), "last": ints(2), "eps": np.float32(1e-5),
    }  # fmt: skip
    steps: list[Any] = [
        ("shape = SHAPE(ids)", {"out_type": I32}),
        ("length = STRIDED_SLICE(shape, b1, e2, s1)", {"shrink_axis_mask": 1}),
        ("size = PACK(length, width)", {"values_count": 2, "axis": 0}),
        "here = SLICE(places, zeros, size)",
        ("words = GATHER(table, ids)", {"axis": 0}),
        "x0 = ADD(words, here)",
        ("m = CAST(mask)", {"in_data_type": I32, "out_data_type": F32}),
        "off = SUB(one, m)", "gone = MUL(off, far)", "bias = RESHAPE(gone, wide)",
    ]  # fmt: skip
    for n in range(layers):
        x, four, square = f"x{n}", (1, 1, heads, depth), (1, heads, 1, 1)
        for part in "qkv":
            tensors |= {f"w{part}{n}": weights(width, width), f"{part}{n}": seq,
                        f"{part}s{n}": four, f"{part}t{n}": four}  # fmt: skip
            steps += [(f"{part}{n} = FULLY_CONNECTED({x}, w{part}{n}, -)", KEEP),
                      f"{part}s{n} = RESHAPE({part}{n}, split)",
                      f"{part}t{n} = TRANSPOSE({part}s{n}, turn)"]  # fmt: skip
        tensors |= dict.fromkeys([f"{t}{n}" for t in ("score", "scaled", "masked", "soft")], square)
        tensors |= {f"o{n}": four, f"ot{n}": four, f"oj{n}": seq, f"wo{n}": weights(width, width),
                    f"op{n}": seq, f"r{n}": seq, f"wu{n}": weights(2 * width, width),
                    f"u{n}": (1, 1, 2 * width), f"g{n}": (1, 1, 2 * width),
                    f"wd{n}": weights(width, 2 * width), f"d{n}": seq, f"rr{n}": seq}  # fmt: skip
        steps += [
            (f"score{n} = BATCH_MATMUL(qt{n}, kt{n})", {"adj_y": True}),
            f"scaled{n} = MUL(score{n}, scale)", f"masked{n} = ADD(scaled{n}, bias)",
            (f"soft{n} = SOFTMAX(masked{n})", {"beta": 1.0}),
            (f"o{n} = BATCH_MATMUL(soft{n}, vt{n})", {}),
            f"ot{n} = TRANSPOSE(o{n}, turn)", f"oj{n} = RESHAPE(ot{n}, join)",
            (f"op{n} = FULLY_CONNECTED(oj{n}, wo{n}, -)", KEEP), f"r{n} = ADD({x}, op{n})",
        ]  # fmt: skip
        norm(tensors, steps, f"r{n}", f"n{n}", seq)
        steps += [
            (f"u{n} = FULLY_CONNECTED(n{n}, wu{n}, -)", KEEP),
            (f"g{n} = GELU(u{n})", {"approximate": True}),
            (f"d{n} = FULLY_CONNECTED(g{n}, wd{n}, -)", KEEP), f"rr{n} = ADD(n{n}, d{n})",
        ]  # fmt: skip
        norm(tensors, steps, f"rr{n}", f"x{n + 1}", seq)
    hidden, pooled = f"x{layers}", (1, width)
    tensors |= {
        "tokens": ints(1), "mean": pooled, "largest": pooled, "column": ints(1, -1, 1),
        "mc": (1, 1, 1), "chosen": seq, "total": pooled, "count": (1, 1), "masked_mean": pooled,
        "first": pooled, "b3": ints(0, 0, 0), "e3": ints(0, 1, 0), "s3": ints(1, 1, 1),
        "wc": weights(5, width), "classes": (1, 5),
    }  # fmt: skip
    steps += [
        f"mean = MEAN({hidden}, tokens)", f"largest = REDUCE_MAX({hidden}, tokens)",
        "mc = RESHAPE(m, column)", f"chosen = MUL({hidden}, mc)", "total = SUM(chosen, tokens)",
        "count = SUM(mc, tokens)", "masked_mean = DIV(total, count)",
        (f"first = STRIDED_SLICE({hidden}, b3, e3, s3)",
         {"begin_mask": 5, "end_mask": 5, "shrink_axis_mask": 2}),
        "classes = FULLY_CONNECTED(first, wc, -)",
    ]  # fmt: skip
    return small_model(tensors, *steps, inputs="ids mask",
                       outputs=f"{hidden} mean largest masked_mean classes")  # fmt: skip


def norm(tensors: dict[str, Any], steps: list[Any], x: str, y: str, seq: tuple[int, ...]) -> None:
    """Layer norm, as converters write it."""
    keep = {"keep_dims": True}
    one = (*seq[:-1], 1)
    tensors |= {f"{y}{t}": one for t in ("mean", "var", "eps", "rs")}
    tensors |= {f"{y}{t}": seq for t in ("mid", "sq")} | {y: seq}
    steps += [
        (f"{y}mean = MEAN({x}, last)", keep), f"{y}mid = SUB({x}, {y}mean)",
        f"{y}sq = MUL({y}mid, {y}mid)", (f"{y}var = MEAN({y}sq, last)", keep),
        f"{y}eps = ADD({y}var, eps)", f"{y}rs = RSQRT({y}eps)", f"{y} = MUL({y}mid, {y}rs)",
    ]  # fmt: skip
