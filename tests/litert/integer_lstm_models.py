"""Files with LSTMs and SVDF on whole numbers: every option that TFLite's kernels have."""

from __future__ import annotations

from typing import Any

import numpy as np
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

SEQUENCE = "UNIDIRECTIONAL_SEQUENCE_LSTM"
#: What `lstm` takes, by a name: each option alone, and all of them.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "time_major": {"time_major": True, "batch": 3},
    "coupled": {"coupled": True},
    "peephole": {"peephole": True},
    "peephole_coupled": {"peephole": True, "coupled": True},
    "norm": {"norm": True, "cells": 37, "batch": 1},
    "norm_coupled": {"norm": True, "coupled": True},
    "projection": {"project": 3, "hidden_zero": 7},
    "projection_without_bias": {"project": 3, "bias": False},
    "projection_peephole": {"project": 4, "peephole": True, "batch": 3},
    "projection_peephole_time_major": {"project": 4, "peephole": True, "time_major": True},
    "cell_clip": {"cell_clip": 0.4},
    "projection_clip": {"project": 4, "proj_clip": 0.2},
    "cells_below_1": {"point": 15},
    "cells_below_64": {"point": 9, "weights": 4 / 127},
    "zero_points": {"hidden_zero": 9, "output_zero": -9},
    "everything": {
        "project": 3, "peephole": True, "norm": True, "cell_clip": 0.6, "proj_clip": 0.5,
        "hidden_zero": -3, "output_zero": 5, "cells": 7, "inputs": 9,
    },
}  # fmt: skip


class Tensors(list[TensorSpec]):
    """Tensors to write, added one by one, filled with numbers that ``seed`` decides on."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._seed = seed

    def add(self, shape: tuple[int, ...], dtype: DType, scale: float, zero: int = 0,
            data: Array | None = None, *, state: bool = False) -> int:  # fmt: skip
        """A tensor; gives its index."""
        quant = Quantization((scale,), (zero,))
        self.append(TensorSpec(f"t{len(self)}", shape, dtype, data, quant, is_variable=state))
        return len(self) - 1

    def const(self, shape: tuple[int, ...], dtype: DType, scale: float, most: int = 127) -> int:
        """A constant, of numbers up to ``most``."""
        rng = np.random.default_rng((self._seed, len(self)))
        data = rng.integers(-most, most, shape, endpoint=True).astype(dtype.numpy)
        return self.add(shape, dtype, scale, data=data)


def lstm(
    op: str = SEQUENCE, *, batch: int = 2, times: int = 3, inputs: int = 5, cells: int = 6,
    project: int = 0, coupled: bool = False, peephole: bool = False, norm: bool = False,
    time_major: bool = False, cell_clip: float = 0.0, proj_clip: float = 0.0, point: int = 11,
    hidden_zero: int = 0, output_zero: int = 0, weights: float = 1 / 127, bias: bool = True,
    seed: int = 0,
) -> bytes:  # fmt: skip
    """An LSTM with gates of 16 bits; ``point`` are the bits behind the point of its cell state."""
    tensors, outputs = Tensors(seed), project or cells
    sequence = op == SEQUENCE
    rows = (times, batch) if time_major else (batch, times)
    rows = rows if sequence else (batch,)

    def gates(*shape: int, dtype: DType = DType.I8, scale: float = weights, most: int = 127,
              when: bool = True) -> list[int]:  # fmt: skip
        return [
            tensors.const(shape, dtype, scale, most)
            if when and not (coupled and gate == 0) else -1
            for gate in range(4)
        ]  # fmt: skip

    x = tensors.add((*rows, inputs), DType.I8, 1 / 64, 3)
    given = [x, *gates(cells, inputs), *gates(cells, outputs)]
    seen = gates(cells, dtype=DType.I16, scale=2.0**-15, most=32767, when=peephole)
    given += [seen[0], seen[1], seen[3]]
    given += gates(cells, dtype=DType.I32, scale=weights / 64, most=3000)
    given.append(tensors.const((outputs, cells), DType.I8, 1 / 200) if project else -1)
    given.append(tensors.const((outputs,), DType.I32, 1 / 9999, 3000) if project and bias else -1)
    given.append(tensors.add((batch, outputs), DType.I8, 1 / 128, output_zero, state=True))
    given.append(tensors.add((batch, cells), DType.I16, 2.0**-point, state=True))
    given += gates(cells, dtype=DType.I16, scale=2.0**-14, most=32767, when=norm)
    told = [tensors.add((), DType.I16, 2.0**-12 * (1.5 if norm else 1)) for _ in range(4)]
    told.append(tensors.add((), DType.I8, 1 / 128, hidden_zero))
    y = tensors.add((*rows, outputs), DType.I8, 1 / 128, output_zero)
    fields = {"fused_activation_function": 4, "cell_clip": cell_clip, "proj_clip": proj_clip}
    fields |= {"time_major": time_major} if sequence else {"kernel_type": 0}
    operator = OperatorSpec(op, fields, given, [y], version=3, intermediates=told)
    return write_model(ModelSpec(tensors, [operator], [x], [y]))


#: What `svdf` takes, by a name.
SVDFS: dict[str, dict[str, Any]] = {
    "rank2": {"rank": 2},
    "rank1": {"rank": 1, "times": 2, "batch": 3},
    "no_bias": {"bias": False},
    "coarse": {"scale": 1 / 8},
    "fine": {"scale": 1 / 3000},
}


def svdf(
    *, batch: int = 2, inputs: int = 5, units: int = 3, times: int = 4, rank: int = 2,
    bias: bool = True, scale: float = 1 / 32,
) -> bytes:  # fmt: skip
    """An SVDF with a state of 16 bits; ``scale`` is that of its result."""
    tensors, filters = Tensors(), units * rank
    x = tensors.add((batch, inputs), DType.I8, 1 / 64, 3)
    given = [x, tensors.const((filters, inputs), DType.I8, 1 / 127)]
    given.append(tensors.const((filters, times), DType.I16, 2.0**-15, 30000))
    given.append(tensors.const((units,), DType.I32, 2.0**-26, 3000) if bias else -1)
    given.append(tensors.add((batch, filters * times), DType.I16, 2.0**-11, state=True))
    y = tensors.add((batch, units), DType.I8, scale, -5)
    fields = {"rank": rank, "fused_activation_function": 1}
    operator = OperatorSpec("SVDF", fields, given, [y], version=3)
    return write_model(ModelSpec(tensors, [operator], [x], [y]))


def basic(*, batch: int = 2, inputs: int = 5, units: int = 6, zero: int = 130) -> bytes:
    """An LSTM with the basic kernel, of u8; ``zero`` is the weight that stands for 0."""
    tensors, rng = Tensors(), np.random.default_rng(0)

    def activations(size: int) -> int:
        return tensors.add((batch, size), DType.U8, 1 / 128, 128)

    def state(size: int, point: int) -> int:
        return tensors.add((batch, size), DType.I16, 2.0**-point)

    x, hidden, cells = activations(inputs), activations(units), state(units, 11)
    stored = rng.integers(0, 256, (4 * units, inputs + units)).astype(np.uint8)
    weights = tensors.add(stored.shape, DType.U8, 0.03, zero, stored)
    biases = tensors.const((4 * units,), DType.I32, 0.03 / 128, 3000)
    made = [activations(units), state(units, 11), activations(inputs + units), state(4 * units, 12)]
    fields = {"fused_activation_function": 4, "kernel_type": 1}
    operator = OperatorSpec("LSTM", fields, [x, hidden, weights, biases, cells], made, version=2)
    return write_model(ModelSpec(tensors, [operator], [x, hidden, cells], made))


def gates_of_8_bits(
    *, batch: int = 2, inputs: int = 5, cells: int = 6, outputs: int = 3, zero: int = 4,
    cell_clip: float = 0.0, proj_clip: float = 0.0, norm: bool = True, seed: int = 0,
) -> bytes:  # fmt: skip
    """An LSTM whose products are of 8 bits, which the file tells by twelve intermediates: of each
    gate the sum's, the input's and the output state's. It has layer norms, a projection, and
    coupled gates."""
    tensors = Tensors(seed)

    def gates(*shape: int, dtype: DType = DType.I8, scale: float = 1 / 127, most: int = 127,
              first: int = 1) -> list[int]:  # fmt: skip
        return [-1] * first + [tensors.const(shape, dtype, scale, most) for _ in range(4 - first)]

    x = tensors.add((batch, inputs), DType.I8, 1 / 64, 3)
    given = [x, *gates(cells, inputs), *gates(cells, outputs), -1, -1, -1]
    given += gates(cells, dtype=DType.I32, scale=2.0**-24, most=2000)
    given.append(tensors.const((outputs, cells), DType.I8, 1 / 127))
    given.append(tensors.const((outputs,), DType.I32, 2.0**-22, 3000))
    given.append(tensors.add((batch, outputs), DType.I8, 1 / 128, -zero, state=True))
    given.append(tensors.add((batch, cells), DType.I16, 2.0**-15, state=True))
    given += gates(cells, dtype=DType.I16, scale=2.0**-14, most=32767) if norm else [-1] * 4
    told = []
    for gate in range(4):
        told.append(tensors.add((), DType.I16, 2.0**-12))
        told += [tensors.add((), DType.I8, 1 / (20 + gate + i), zero * i) for i in (1, 2)]
    y = tensors.add((batch, outputs), DType.I8, 1 / 128, -zero)
    fields = {"fused_activation_function": 4, "cell_clip": cell_clip, "proj_clip": proj_clip}
    operator = OperatorSpec(
        "LSTM", fields | {"kernel_type": 0}, given, [y], version=4, intermediates=told
    )
    return write_model(ModelSpec(tensors, [operator], [x], [y]))
