"""Spectra of which only parts are read, as matrix products on devices with kernels."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import pytest
from tflgpu import GpuDelegate, Interpreter
from tflgpu.compiler.target import Target
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Value
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.lowering import Precision
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes import spectrum
from tflgpu.passes.base import PassContext, run_passes
from tflgpu.tflite.write import write_model

from tests.passes.harness import Maker, draw, evaluate, inferred, names
from tests.running import allocate_and_run
from tests.small_models import small_spec, tensor_of

DEVICE = Target.plain(DeviceCaps(), Precision.F32).pass_context


def _run(graph: Graph, context: PassContext = DEVICE) -> Graph:
    after = graph.copy()
    run_passes(after, [spectrum.PASS], context)
    inferred(after)
    inputs = draw(graph)
    for mine, theirs in zip(evaluate(after, inputs), evaluate(graph, inputs), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())
    return after


def _graph(end: Callable[[Maker, Value], tuple[Value, ...]], *shape: int, width: int = 16) -> Graph:
    g = Maker()
    x = g.input(*shape)
    return g.done(*end(g, g.op("RFFT2D", x, g.ints(1, width))))


def _size(g: Maker, spectrum: Value) -> tuple[Value, ...]:
    return (g.op("COMPLEX_ABS", g.op("RESHAPE", spectrum, g.ints(1, 7, -1))),)


@pytest.mark.parametrize("taken", [16, 13])  # a shorter frame is filled with zeros
def test_the_size_of_a_spectrum(taken: int) -> None:
    after = _run(_graph(_size, 1, 7, 1, taken))
    assert "RFFT2D" not in names(after)
    assert names(after).count("FULLY_CONNECTED") == 2
    assert names(after)[-2:] == ["SQRT", "RESHAPE"]


def test_its_parts_and_its_size() -> None:
    def ends(g: Maker, spectrum: Value) -> tuple[Value, ...]:
        return tuple(g.op(op, spectrum) for op in ("REAL", "IMAG", "COMPLEX_ABS"))

    assert "RFFT2D" not in names(_run(_graph(ends, 3, 1, 16)))


def test_a_cast_reads_the_real_part() -> None:
    def ends(g: Maker, spectrum: Value) -> tuple[Value, ...]:
        return (g.op("CAST", g.op("SQUEEZE", spectrum, squeeze_dims=[1]), out_data_type=0),)

    after = _run(_graph(ends, 3, 1, 16))
    assert names(after).count("FULLY_CONNECTED") == 1


def test_the_imaginary_ends_are_zero_to_all_but_a_phase() -> None:
    """FLOOR of the least number below 0 is -1."""

    def ends(g: Maker, spectrum: Value) -> tuple[Value, ...]:
        real, imaginary = g.op("REAL", spectrum), g.op("IMAG", spectrum)
        flat = g.op("RESHAPE", imaginary, g.ints(27))
        phase = g.op("ATAN2", flat, g.op("RESHAPE", real, g.ints(27)))
        return phase, g.op("FLOOR", imaginary), imaginary

    graph = _graph(ends, 3, 1, 16)
    after = graph.copy()
    run_passes(after, [spectrum.PASS], DEVICE)
    inferred(after)
    inputs = draw(graph)
    (phase, floor, imaginary), wanted = evaluate(after, inputs), evaluate(graph, inputs)
    assert (wanted[0] < -3).any()
    np.testing.assert_allclose(phase, wanted[0], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(floor, wanted[1])
    assert not imaginary[..., [0, -1]].any()


@pytest.mark.parametrize(("width", "taken"), [(2048, 2048), (4096, 4001)])
def test_long_ones_go_in_two_steps(width: int, taken: int) -> None:
    def ends(g: Maker, spectrum: Value) -> tuple[Value, ...]:
        return tuple(g.op(op, spectrum) for op in ("REAL", "IMAG", "COMPLEX_ABS"))

    after = _run(_graph(ends, 3, 1, taken, width=width))
    assert "RFFT2D" not in names(after)
    assert names(after).count("BATCH_MATMUL") == 1
    constants = {id(v): v.elements for n in after.nodes for v in n.inputs if v and v.is_const}
    assert sum(constants.values()) < 0.2 * width**2


@pytest.mark.parametrize(
    "graph",
    [
        _graph(lambda g, s: (s,), 3, 1, 16),  # all of it is wanted
        _graph(lambda g, s: (*_size(g, s), s), 1, 7, 1, 16),
        _graph(_size, 1, 7, 1, 17),  # a number is cut off
        _graph(_size, 1, 7, 2, 16),  # and a row
        _graph(_size, 1, 7, 1, 16, width=32768),  # long
    ],
    ids=["output", "output too", "cut", "rows", "long"],
)
def test_others_stay(graph: Graph) -> None:
    assert "RFFT2D" in names(_run(graph))


@pytest.mark.parametrize(
    "context",
    [
        attrs.evolve(DEVICE, kernels=False),
        Target.plain(DeviceCaps(), Precision.F16).pass_context,
        PassContext(builtin_ops()),
    ],
    ids=["no kernels", "f16", "no device"],
)
def test_only_for_kernels_in_f32(context: PassContext) -> None:
    assert "RFFT2D" in names(_run(_graph(_size, 1, 7, 1, 16), context))


@pytest.mark.parametrize("device", [0, 1], ids=["reference", "kernels"])
def test_the_phase_of_a_negative_end_is_litert_s(device: int, litert: object) -> None:
    """-0 of the imaginary part makes it minus half a turn; 0, or a rounding error, plus."""
    shape = (9, 1, 17)
    spec = small_spec(
        {
            "x": (9, 1, 32),
            "n": tensor_of((2,), DType.I32, [1, 32]),
            "c": tensor_of(shape, DType.C64),
            "re": shape,
            "im": shape,
            "phase": shape,
        },
        "c = RFFT2D(x, n)",
        "re = REAL(c)",
        "im = IMAG(c)",
        "phase = ATAN2(im, re)",
    )
    content = write_model(spec)
    x = np.random.default_rng(0).normal(size=(9, 1, 32)).astype(np.float32)
    found = []
    with (
        GpuDelegate(backend="cpu_ref", device=device) as delegate,
        Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        for each in (ours, litert.Interpreter(model_content=content)):
            allocate_and_run(each, {0: x})
            found.append(each.get_tensor(5))
    assert (found[1][..., [0, -1]] < -3).any()
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-4)


def test_sound_stays_on_a_device_and_is_as_litert_hears_it(litert: object) -> None:
    spec = small_spec(
        {
            "x": (5, 1, 30),
            "n": tensor_of((2,), DType.I32, [1, 32]),
            "c": tensor_of((5, 1, 17), DType.C64),
            "y": (5, 1, 17),
        },
        "c = RFFT2D(x, n)",
        "y = COMPLEX_ABS(c)",
    )
    content = write_model(spec)
    x = np.random.default_rng(0).normal(size=(5, 1, 30)).astype(np.float32)
    found = []
    with (
        GpuDelegate(backend="cpu_ref", device=1) as delegate,
        Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        for each in (ours, litert.Interpreter(model_content=content)):
            allocate_and_run(each, {0: x})
            found.append(each.get_tensor(3))
        assert ours.report.fully_delegated
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=2e-6 * found[1].max())
