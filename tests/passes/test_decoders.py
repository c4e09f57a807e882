"""What exports of decoders and of recurrent networks have between their products: how many kernels
it is, with what computes in loads and without, and that both give what LiteRT gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tflgpu
from tflgpu.compiler.join_reads import JoinReads
from tflgpu.ir.dtypes import Array, DType

from tests.compiler.test_found_attention import Building
from tests.running import allocate_and_run, outputs

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

_STEPS = 4


def drawn(content: bytes) -> list[Array]:
    details = litert.Interpreter(model_content=content).get_input_details()
    rng, given = np.random.default_rng(5), [(d["shape"], d["dtype"]) for d in details]
    whole = [rng.integers(0, 5, shape) for shape, _ in given]
    real = [rng.uniform(-2, 2, shape) for shape, _ in given]
    return [
        (r if t is np.float32 else w).astype(t)
        for w, r, (_, t) in zip(whole, real, given, strict=True)
    ]


def ran(content: bytes, given: Sequence[Array]) -> tuple[list[Array], int]:
    """Results of the NumPy interpreter of kernels, and how many kernels there were."""
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, enable_serialization=False) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as interpreter,
    ):
        allocate_and_run(interpreter, given)
        assert interpreter.report.fully_delegated
        return outputs(interpreter), interpreter.report.dispatches


def check(content: bytes, kernels: int, apart: int, patch: pytest.MonkeyPatch) -> None:
    """As many kernels, and so many where nothing is computed in loads; results like LiteRT's."""
    given = drawn(content)
    theirs = litert.Interpreter(model_content=content)
    allocate_and_run(theirs, given)
    found, count = ran(content, given)
    with patch.context() as here:
        here.setattr(JoinReads, "_fits", lambda *_: False)
        plain, more = ran(content, given)
    assert (count, more) == (kernels, apart)
    for expected, *ours in zip(outputs(theirs), found, plain, strict=True):
        for one in ours:
            np.testing.assert_allclose(one, expected, rtol=0, atol=3e-6)


def cut(b: Building, x: int, begin: Sequence[int], size: Sequence[int]) -> int:
    places = [b.const(each, DType.I32) for each in (begin, size)]
    return b.op("SLICE", [x, *places], size)


def parts(b: Building, x: int, count: int) -> list[int]:
    """Slices along the last axis."""
    *lead, width = b.shape(x)
    each = width // count
    start = [0] * len(lead)
    return [cut(b, x, (*start, i * each), (*lead, each)) for i in range(count)]


def concat(b: Building, axis: int, *inputs: int) -> int:
    shape = list(b.shape(inputs[0]))
    shape[axis] = sum(b.shape(each)[axis] for each in inputs)
    return b.op("CONCATENATION", inputs, shape, axis=axis)


def one(b: Building, name: str, x: int) -> int:
    return b.op(name, [x], b.shape(x))


def dense(b: Building, x: int, units: int) -> int:
    rng = np.random.default_rng(4)
    weights = b.const(rng.normal(size=(units, b.shape(x)[-1])) / 4)
    made = (*b.shape(x)[:-1], units)
    return b.op(
        "FULLY_CONNECTED", [x, weights, b.const(rng.normal(size=units))], made, keep_num_dims=True
    )


# Rotary embeddings


def angles(b: Building, tokens: int, width: int) -> tuple[int, int]:
    """Cosines and sines of positions."""
    at = b.given(1, tokens, 1, dtype=DType.I32)
    real = b.op("CAST", [at], (1, tokens, 1), in_data_type=2, out_data_type=0)
    rates = b.const(1 / 10 ** np.linspace(0, 2, width).reshape(1, 1, width))
    turned = b.with_("MUL", real, rates)
    return one(b, "COS", turned), one(b, "SIN", turned)


def rotary(tokens: int, width: int, *, halves: bool, also: bool = False) -> bytes:
    """Queries and keys, of one product, turned; by whole rows (rotate_half), or by their halves."""
    b = Building()
    cos, sin = angles(b, tokens, width // 2 if halves else width)
    made = []
    for packed in parts(b, dense(b, b.given(1, tokens, 8), 2 * width), 2):
        low, high = parts(b, packed, 2)
        if halves:
            first = b.with_("SUB", b.with_("MUL", low, cos), b.with_("MUL", high, sin))
            last = b.with_("ADD", b.with_("MUL", high, cos), b.with_("MUL", low, sin))
            made.append(concat(b, 2, first, last))
        else:
            half = concat(b, 2, b.with_("MUL", high, b.const(-1.0)), low)
            made.append(b.with_("ADD", b.with_("MUL", packed, cos), b.with_("MUL", half, sin)))
            made += [half] if also else []
    return b.model(*made)


@pytest.mark.parametrize(("tokens", "width"), [(1, 16), (5, 16), (3, 6)])
def test_rotations_of_halves(tokens: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # A product, a cosine, a sine, and both rotations side by side.
    check(rotary(tokens, width, halves=True), 4, 12, monkeypatch)


@pytest.mark.parametrize(("tokens", "width"), [(1, 16), (5, 16)])
def test_rotations_of_rows(tokens: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(rotary(tokens, width, halves=False), 3, 11, monkeypatch)  # not even cosines and sines


def test_what_is_a_result_too_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    check(rotary(5, 16, halves=False, also=True), 4, 11, monkeypatch)


# Recurrent networks, step by step


def recurrent(kind: str, hidden: int = 8) -> bytes:
    """All steps of the input at once; then a product of the state, and gates, for each step."""
    b = Building()
    gates = 4 if kind == "lstm" else 3
    mixed = dense(b, b.given(2, _STEPS, 5), gates * hidden)
    h, c = b.given(2, hidden), b.given(2, hidden) if kind == "lstm" else -1
    made = []
    for step in range(_STEPS):
        x = b.reshaped(cut(b, mixed, (0, step, 0), (2, 1, gates * hidden)), 2, gates * hidden)
        y = dense(b, h, gates * hidden)
        if kind == "lstm":
            i, f, g, o = parts(b, b.with_("ADD", x, y), 4)
            kept = b.with_("MUL", one(b, "LOGISTIC", f), c)
            c = b.with_("ADD", kept, b.with_("MUL", one(b, "LOGISTIC", i), one(b, "TANH", g)))
            h = b.with_("MUL", one(b, "LOGISTIC", o), one(b, "TANH", c))
        else:
            (rx, zx, nx), (ry, zy, ny) = parts(b, x, 3), parts(b, y, 3)
            r = one(b, "LOGISTIC", b.with_("ADD", rx, ry))
            z = one(b, "LOGISTIC", b.with_("ADD", zx, zy))
            n = one(b, "TANH", b.with_("ADD", nx, b.with_("MUL", r, ny)))
            h = b.with_("ADD", n, b.with_("MUL", z, b.with_("SUB", h, n)))
        made.append(b.reshaped(h, 2, 1, hidden))
    return b.model(concat(b, 1, *made), h)


@pytest.mark.parametrize(
    ("kind", "hidden", "kernels", "apart"),
    [
        ("gru", 8, 1 + 2 * _STEPS, 26),  # a product and the state, for each step
        ("gru", 6, 1 + 2 * _STEPS, 26),
        ("lstm", 8, 1 + 2 * _STEPS + 1, 22),  # a product, which makes the state, and the cell
        ("lstm", 6, 1 + 3 * _STEPS, 22),  # whose vectors are not whole ones
    ],
)
def test_gates_are_a_kernel_a_state(
    kind: str, kernels: int, apart: int, hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(recurrent(kind, hidden), kernels, apart, monkeypatch)
