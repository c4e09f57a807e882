"""Recurrent operators on whole numbers, with 16-bit state: LiteRT runs them, beside a device's parts,
and keeps their state there. With 8-bit weights and float inputs they are computed as with the weights
that these stand for."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.conformance.samples import materialize, run_reference
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.quant import Quantization
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec, spec_of
from tflgpu.tflite.write import write_model

from tests.ops.test_reference_vs_litert import single_op_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

BATCH, TIMES, INPUTS, CELLS = 2, 3, 4, 6


class Tensors(list[TensorSpec]):
    """Tensors to write, added one by one."""

    def add(self, shape: tuple[int, ...], dtype: DType, scale: float, zero: int = 0,
            data: Array | None = None, state: bool = False) -> int:  # fmt: skip
        quant = Quantization((scale,), (zero,))
        self.append(TensorSpec(f"t{len(self)}", shape, dtype, data, quant, is_variable=state))
        return len(self) - 1

    def weights(self, *shape: int, dtype: DType = DType.I8, scale: float = 1 / 127) -> int:
        rng = np.random.default_rng(len(self))
        most = {DType.I8: 127, DType.I16: 30000, DType.I32: 3000}[dtype]
        return self.add(
            shape, dtype, scale, data=rng.integers(-most, most, shape).astype(dtype.numpy)
        )


def lstm() -> bytes:
    tensors = Tensors()
    x = tensors.add((BATCH, TIMES, INPUTS), DType.I8, 1 / 64, 3)
    weights = [tensors.weights(CELLS, INPUTS) for _ in range(4)]
    recurrent = [tensors.weights(CELLS, CELLS) for _ in range(4)]
    biases = [tensors.weights(CELLS, dtype=DType.I32, scale=1 / 64 / 127) for _ in range(4)]
    hidden = tensors.add((BATCH, CELLS), DType.I8, 1 / 128, state=True)
    cells = tensors.add((BATCH, CELLS), DType.I16, 2.0**-11, state=True)
    told = [tensors.add((), DType.I16, 2.0**-12) for _ in range(4)]
    told.append(tensors.add((), DType.I8, 1 / 128))
    y = tensors.add((BATCH, TIMES, CELLS), DType.I8, 1 / 128)
    operator = OperatorSpec(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", {"fused_activation_function": 4, "time_major": False},
        [x, *weights, *recurrent, *[-1] * 3, *biases, -1, -1, hidden, cells, *[-1] * 4], [y],
        version=3, intermediates=told,
    )  # fmt: skip
    return followed(tensors, operator)


def svdf() -> bytes:
    tensors = Tensors()
    x = tensors.add((BATCH, INPUTS), DType.I8, 1 / 64, 3)
    operands = [
        x, tensors.weights(CELLS, INPUTS),
        tensors.weights(CELLS, TIMES, dtype=DType.I16, scale=2.0**-15),
        tensors.weights(CELLS // 2, dtype=DType.I32, scale=2.0**-26),
        tensors.add((BATCH, CELLS * TIMES), DType.I16, 2.0**-11, state=True),
    ]  # fmt: skip
    y = tensors.add((BATCH, CELLS // 2), DType.I8, 1 / 32, -5)
    fields = {"rank": 2, "fused_activation_function": 1}
    return followed(tensors, OperatorSpec("SVDF", fields, operands, [y], version=3))


def followed(tensors: Tensors, operator: OperatorSpec) -> bytes:
    """By what a device takes."""
    (y,), shape = operator.outputs, tensors[operator.outputs[0]].shape
    real, last = len(tensors), len(tensors) + 1
    tensors += [TensorSpec("real", shape), TensorSpec("last", shape)]
    operators = [
        operator,
        OperatorSpec("DEQUANTIZE", {}, [y], [real], version=2),
        OperatorSpec("NEG", {}, [real], [last]),
    ]
    return write_model(ModelSpec(tensors, operators, [0], [last]))


def call(interpreter: Any, x: Array) -> Array:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return np.asarray(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


@pytest.mark.parametrize("model", [lstm, svdf])
@pytest.mark.parametrize("host", [tflgpu.Interpreter, litert.Interpreter], ids=["tflgpu", "litert"])
def test_whole_numbers_with_16_bit_state(model: Any, host: Any) -> None:
    content = model()
    plain = litert.Interpreter(model_content=content)
    plain.allocate_tensors()
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        ours = host(model_content=content, experimental_delegates=[delegate])
        ours.allocate_tensors()
        shape = plain.get_input_details()[0]["shape"]
        rng = np.random.default_rng(0)
        seen = []
        for number in range(9):
            if number == 6:
                plain.reset_all_variables(), ours.reset_all_variables()
            x = rng.integers(-127, 128, shape).astype(np.int8)
            if number in (5, 6):
                x = np.full(shape, 9, np.int8)
            seen.append(call(plain, x))
            np.testing.assert_array_equal(call(ours, x), seen[-1])
        assert np.abs(seen[5] - seen[6]).max() > 0  # state matters
        del ours


@pytest.mark.parametrize(
    ("op", "sample"),
    [("UNIDIRECTIONAL_SEQUENCE_LSTM", "everything"), ("BIDIRECTIONAL_SEQUENCE_RNN", "merged"),
     ("SVDF", "odd")],
)  # fmt: skip
def test_weights_of_8_bits(op: str, sample: str) -> None:
    """LiteRT also rounds what they are multiplied with to 8 bits, in every step; a device does not,
    so that it is held against the numbers that the weights stand for."""
    definition = builtin_ops()[op]
    case = materialize(definition, next(s for s in definition.samples() if s.id == sample))
    spec = spec_of(read_model(single_op_model(case)))
    tensors = list(spec.tensors)
    for value in case.graph.values.values():
        if value.data is not None and value.data.ndim == 2:
            quant = Quantization((float(np.abs(value.data).max()) / 127,), (0,))
            stored = np.rint(value.data / quant.scale[0]).astype(np.int8)
            tensors[value.id] = attrs.evolve(
                tensors[value.id], dtype=DType.I8, data=stored, quantization=quant
            )
            value.data = quant.dequantize(stored)
    content = write_model(attrs.evolve(spec, tensors=tensors))
    expected, states = run_reference(case, case.arrays)
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1, allow_fallback=False) as delegate:
        ours = tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        ours.allocate_tensors()
        for index, array in case.arrays.items():
            ours.set_tensor(index, array)
        ours.invoke()
        for value, want in zip(
            [*case.graph.outputs, *case.variables], [*expected, *states], strict=True
        ):
            case.tolerance().check(ours.get_tensor(value.id), want)
        ours.close()
