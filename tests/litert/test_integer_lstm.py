"""LSTMs and SVDF on whole numbers: what is computed here is what LiteRT's reference kernels
compute, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array

from tests.litert.integer_lstm_models import (
    OPTIONS,
    SEQUENCE,
    SVDFS,
    basic,
    gates_of_8_bits,
    lstm,
    svdf,
)

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
        interpreter.set_tensor(given["index"], x)
        interpreter.invoke()
        found.append(np.array(interpreter.get_tensor(made["index"])))
    return np.stack(found)


def expected(content: bytes) -> tuple[list[Array], Array]:
    """Inputs of several runs, and what LiteRT's reference kernels make of them."""
    plain = litert.Interpreter(
        model_content=content, experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF
    )
    plain.allocate_tensors()
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
def test_on_a_device(
    backend: str, content: bytes, require_backend: Callable[[str], object]
) -> None:
    require_backend(backend)
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
