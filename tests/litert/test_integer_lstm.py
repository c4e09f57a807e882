"""LSTMs and SVDF on whole numbers: what is computed here is what LiteRT's reference kernels
compute, bit for bit."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.conformance.samples import materialize
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec, spec_of
from tflgpu.tflite.write import write_model

from tests.litert.integer_lstm_models import (
    OPTIONS,
    SEQUENCE,
    SVDFS,
    basic,
    gates_of_8_bits,
    lstm,
    svdf,
)
from tests.ops.test_reference_vs_litert import single_op_model
from tests.running import allocated, set_and_run

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

CALLS = 6
RESET = 4  # the call before which variables are reset


def calls(interpreter: Any, inputs: list[Array]) -> Array:
    """The results of several runs, which state tells apart."""
    interpreter.allocate_tensors()
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    found = []
    for number, x in enumerate(inputs):
        if number == RESET:
            interpreter.reset_all_variables()
        set_and_run(interpreter, {given["index"]: x})
        found.append(np.array(interpreter.get_tensor(made["index"])))
    return np.stack(found)


def expected(content: bytes) -> tuple[list[Array], Array]:
    """Inputs of several runs, and what LiteRT's reference kernels make of them."""
    plain = allocated(
        litert.Interpreter(
            model_content=content, experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF
        )
    )
    given, rng = plain.get_input_details()[0], np.random.default_rng(0)
    inputs = [rng.integers(-128, 128, given["shape"]).astype(given["dtype"]) for _ in range(CALLS)]
    inputs[RESET] = inputs[RESET - 1] = inputs[0]
    wanted = calls(plain, inputs)
    np.testing.assert_array_equal(wanted[RESET], wanted[0])
    assert (wanted[RESET] != wanted[RESET - 1]).any()  # state matters
    return inputs, wanted


@pytest.mark.parametrize("op", [SEQUENCE, "LSTM"])
@pytest.mark.parametrize("option", OPTIONS)
def test_the_references(op: str, option: str) -> None:
    if op == "LSTM" and OPTIONS[option].get("time_major"):
        pytest.skip("LSTM has no time")
    same_by_references(lstm(op, **OPTIONS[option]))


@pytest.mark.parametrize("option", SVDFS)
def test_the_reference_of_svdf(option: str) -> None:
    same_by_references(svdf(**SVDFS[option]))


def same_by_references(content: bytes) -> None:
    """The references make what LiteRT's reference kernels make."""
    inputs, wanted = expected(content)
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=[], cpu_backend="cpu_ref"
    ) as ours:
        np.testing.assert_array_equal(calls(ours, inputs), wanted)


@pytest.mark.parametrize("options", [{}, {"cell_clip": 0.4, "proj_clip": 0.3}, {"cells": 41}])
def test_the_references_of_gates_of_8_bits(options: dict[str, Any]) -> None:
    same_by_references(gates_of_8_bits(**options))


@pytest.mark.parametrize("side", ["litert", "cpu_ref"])
def test_gates_of_8_bits_without_norms(side: str) -> None:
    """LiteRT ends the process: it reads them without looking."""
    with (
        tflgpu.Interpreter(
            model_content=gates_of_8_bits(norm=False), experimental_delegates=[], cpu_backend=side
        ) as ours,
        pytest.raises(tflgpu.TflgpuError, match="one is absent"),
    ):
        ours.allocate_tensors()
        ours.invoke()


@pytest.mark.parametrize("side", ["litert", "cpu_ref"])
@pytest.mark.parametrize("zero", [130, 90])
def test_the_basic_kernel_of_u8(side: str, zero: int) -> None:
    content = basic(zero=zero)

    def run(interpreter: Any) -> list[Array]:
        interpreter.allocate_tensors()
        rng, found = np.random.default_rng(0), []
        for _ in range(3):
            for detail in interpreter.get_input_details():
                info = np.iinfo(detail["dtype"])
                x = rng.integers(
                    info.min, info.max, detail["shape"], detail["dtype"], endpoint=True
                )
                interpreter.set_tensor(detail["index"], x)
            interpreter.invoke()
            made = interpreter.get_output_details()
            found += [np.array(interpreter.get_tensor(d["index"])) for d in made]
        return found

    plain = litert.Interpreter(
        model_content=content, experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF
    )
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=[], cpu_backend=side
    ) as ours:
        for got, want in zip(run(ours), run(plain), strict=True):
            np.testing.assert_array_equal(got, want)


#: The kernels take all options but layer norms; these are what differs most.
ON_DEVICES = (
    lstm(**OPTIONS["projection_peephole_time_major"]),
    lstm("LSTM", **OPTIONS["zero_points"], coupled=True, cell_clip=0.5, point=12),
    svdf(**SVDFS["rank2"]),
)


def same_on_a_device(backend: str, device: int, content: bytes) -> None:
    inputs, wanted = expected(content)
    with (
        tflgpu.GpuDelegate(backend=backend, device=device, allow_fallback=False) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        np.testing.assert_array_equal(calls(ours, inputs), wanted)


@pytest.mark.parametrize("option", [o for o in OPTIONS if not OPTIONS[o].get("norm")])
def test_the_kernel(option: str) -> None:
    same_on_a_device("cpu_ref", 1, lstm(**OPTIONS[option]))


@pytest.mark.parametrize("option", SVDFS)
def test_the_kernel_of_svdf(option: str) -> None:
    same_on_a_device("cpu_ref", 1, svdf(**SVDFS[option]))


@pytest.mark.parametrize("content", ON_DEVICES, ids=["sequence", "step", "svdf"])
@pytest.mark.parametrize("backend", ["opencl", "vulkan", "wgpu"])
def test_on_a_device(backend: str, content: bytes) -> None:
    same_on_a_device(backend, 0, content)


def test_a_layer_norm_stays_on_the_cpu() -> None:
    content = lstm(norm=True)
    inputs, wanted = expected(content)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        np.testing.assert_array_equal(calls(ours, inputs), wanted)
        assert "layer norm" in ours.report.refusals[0].reason


def test_what_ends_litert_stays_away_from_it() -> None:
    """Peepholes, and more outputs than cells: LiteRT writes beyond its memory."""
    content = lstm(peephole=True, project=4000, batch=1)
    x = np.ones((1, 3, 5), np.int8)
    found = []
    for side in ("litert", "cpu_ref"):
        with tflgpu.Interpreter(
            model_content=content, experimental_delegates=[], cpu_backend=side
        ) as ours:
            found.append(calls(ours, [x] * 2))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("side", ["litert", "cpu_ref"])
def test_a_state_begins_where_its_zero_is(side: str) -> None:
    """Not with zeros, where the output has a zero point: LiteRT resets i8 states to that."""
    content = lstm(output_zero=-40, times=1)
    inputs, wanted = expected(content)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, cpu_backend=side) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        np.testing.assert_array_equal(calls(ours, inputs), wanted)


# Recurrent operators on whole numbers, with 16-bit state, on a device and, beside its parts, by
# LiteRT, which is handed their state. With 8-bit weights and float inputs a device computes what
# LiteRT does.


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


def lstm_recurrent() -> bytes:
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


def svdf_recurrent() -> bytes:
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
    set_and_run(interpreter, {interpreter.get_input_details()[0]["index"]: x})
    return np.asarray(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


@pytest.mark.parametrize("model", [lstm_recurrent, svdf_recurrent])
@pytest.mark.parametrize("host", [tflgpu.Interpreter, litert.Interpreter], ids=["tflgpu", "litert"])
@pytest.mark.parametrize(
    "left", [(), ("UNIDIRECTIONAL_SEQUENCE_LSTM", "SVDF")], ids=["all", "rest"]
)
def test_whole_numbers_with_16_bit_state(model: Any, host: Any, left: tuple[str, ...]) -> None:
    content = model()
    plain = allocated(litert.Interpreter(model_content=content))
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1, exclude=left) as delegate:
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


#: Ops and samples; LiteRT's kernel of a BIDIRECTIONAL_SEQUENCE_RNN reads memory that is not its own
#: where outputs are merged.
SAMPLES = (
    ("RNN", "odd"), ("UNIDIRECTIONAL_SEQUENCE_RNN", "time_major"),
    ("BIDIRECTIONAL_SEQUENCE_RNN", "apart"), ("SVDF", "odd"), ("LSTM", "full_coupled"),
    ("UNIDIRECTIONAL_SEQUENCE_LSTM", "everything"), ("BIDIRECTIONAL_SEQUENCE_LSTM", "second"),
)  # fmt: skip
#: Where weights of rank 1 are 8-bit numbers too: the cell's peepholes.
PEEPHOLES = {"LSTM": (9, 10, 11), "UNIDIRECTIONAL_SEQUENCE_LSTM": (9, 10, 11)}
MOST_ROUNDED = 2e-6  # rounding in f32, of sums up to 8 or so; a step rounded otherwise changes 1e-4


def hybrid(op: str, sample: str, **more: Any) -> tuple[bytes, dict[int, Array]]:
    """A sample with weights of 8 bits, and what it is run on."""
    definition = builtin_ops()[op]
    found = next(s for s in definition.samples() if s.id == sample)
    case = materialize(definition, attrs.evolve(found, fields={**found.fields, **more}))
    spec = spec_of(read_model(single_op_model(case)))
    tensors, (operator,) = list(spec.tensors), spec.operators
    own = [operator.inputs[i] for i in PEEPHOLES.get(op, ())]
    for value in case.graph.values.values():
        if value.data is not None and (value.data.ndim == 2 or value.id in own):
            quant = Quantization((float(np.abs(value.data).max()) / 127,), (0,))
            stored = np.rint(value.data / quant.scale[0]).astype(np.int8)
            tensors[value.id] = attrs.evolve(
                tensors[value.id], dtype=DType.I8, data=stored, quantization=quant
            )
    content = write_model(attrs.evolve(
        spec, tensors=tensors, operators=[attrs.evolve(operator, version=3)]
    ))  # fmt: skip
    states = {v.id for v in case.variables}
    return content, {i: a for i, a in case.arrays.items() if i not in states}


def several(interpreter: Any, arrays: dict[int, Array]) -> list[list[Array]]:
    """The results of three runs, which state tells apart."""
    interpreter.allocate_tensors()
    runs = []
    for number in range(3):
        for index, array in arrays.items():
            interpreter.set_tensor(index, array * np.float32(1 + number))
        interpreter.invoke()
        details = interpreter.get_output_details()
        runs.append([np.array(interpreter.get_tensor(d["index"])) for d in details])
    return runs


@pytest.mark.parametrize("rounding", ["symmetric", "asymmetric"])
@pytest.mark.parametrize(("op", "sample"), SAMPLES, ids=[s[0] for s in SAMPLES])
def test_weights_of_8_bits(op: str, sample: str, rounding: str) -> None:
    """LiteRT rounds what they are multiplied with to 8 bits, in every step, and so does a
    device."""
    content, arrays = hybrid(op, sample, asymmetric_quantize_inputs=rounding == "asymmetric")
    wanted = several(litert.Interpreter(model_content=content), arrays)
    found: list[list[list[Array]]] = []
    for rounds in (True, False):
        with (
            tflgpu.GpuDelegate(
                backend="cpu_ref", device=1, allow_fallback=False, round_hybrid_inputs=rounds
            ) as delegate,
            tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
        ):
            found.append(several(ours, arrays))

    def off(results: list[list[Array]]) -> float:
        return max(
            float(np.abs(a - b).max())
            for got, want in zip(results, wanted, strict=True)
            for a, b in zip(got, want, strict=True)
        )

    assert off(found[0]) <= MOST_ROUNDED
    assert off(found[1]) > 50 * MOST_ROUNDED  # as real numbers it would be seen


@pytest.mark.parametrize("backend", ["opencl", "vulkan", "wgpu"])
def test_weights_of_8_bits_on_a_device(backend: str) -> None:
    content, arrays = hybrid("UNIDIRECTIONAL_SEQUENCE_LSTM", "everything")
    wanted = several(litert.Interpreter(model_content=content), arrays)
    with (
        tflgpu.GpuDelegate(backend=backend, allow_fallback=False) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        found = several(ours, arrays)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got[0], want[0], rtol=0, atol=MOST_ROUNDED)


def test_what_litert_gets_wrong_of_them_stays_away_from_it() -> None:
    """It ends the process on this one."""
    content, arrays = hybrid("BIDIRECTIONAL_SEQUENCE_RNN", "merged")
    results = []
    for side in ("litert", "cpu_ref"):
        with tflgpu.Interpreter(
            model_content=content, experimental_delegates=[], cpu_backend=side
        ) as ours:
            results.append(several(ours, arrays))
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got[0], want[0], rtol=0, atol=MOST_ROUNDED)


@pytest.mark.needs("vulkan")
def test_a_state_of_whole_numbers_does_not_drift() -> None:
    """After a thousand steps on a device it is what LiteRT has, bit for bit."""
    rng = np.random.default_rng(1)
    for model in (lstm_recurrent, svdf_recurrent):
        content = model()
        plain = allocated(litert.Interpreter(model_content=content))
        with tflgpu.GpuDelegate(backend="vulkan", allow_fallback=False) as delegate:
            ours = allocated(
                tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
            )
            (given,), (made,) = plain.get_input_details(), plain.get_output_details()
            inputs = rng.integers(-128, 128, (1000, *given["shape"])).astype(np.int8)
            for x in inputs:
                for host in (ours, plain):
                    set_and_run(host, {given["index"]: x})
            np.testing.assert_array_equal(
                ours.get_tensor(made["index"]), plain.get_tensor(made["index"])
            )
            ours.close()
