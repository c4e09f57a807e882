"""Attention as converters write it becomes one node; what only looks like it does not. Against
LiteRT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT
from tflgpu import GpuDelegate, Interpreter
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.runtime.opening import compiled_on
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import first_results

B, N, T, S, H, D = 2, 3, 5, 7, 4, 6
NAME = "ATTENTION"


class Building:
    """A model, an operator after the other."""

    def __init__(self, steps: Quantization | None = None) -> None:
        self.steps, self.version = steps, 1 if steps is None else 2
        self.stored = DType.F32 if steps is None else DType.I8
        self.tensors: list[TensorSpec] = []
        self.operators: list[OperatorSpec] = []
        self.inputs: list[int] = []

    def add(self, spec: TensorSpec) -> int:
        self.tensors.append(spec)
        return len(self.tensors) - 1

    def given(self, *shape: int, dtype: DType = DType.F32) -> int:
        dtype = self.stored if dtype is DType.F32 else dtype
        self.inputs.append(
            self.add(TensorSpec(f"in{len(self.inputs)}", shape, dtype, quantization=self.steps))
        )
        return self.inputs[-1]

    def const(self, data: Any, dtype: DType = DType.F32) -> int:
        array = np.asarray(data, dtype.numpy)
        return self.add(TensorSpec(f"c{len(self.tensors)}", array.shape, dtype, array))

    def op(self, name: str, inputs: Sequence[int], shape: Sequence[int], **fields: Any) -> int:
        steps = (
            Quantization((1 / 256,), (-128,)) if self.steps and name == "SOFTMAX" else self.steps
        )
        spec = TensorSpec(f"t{len(self.tensors)}", tuple(shape), self.stored, quantization=steps)
        made = self.add(spec)
        self.operators.append(
            OperatorSpec(
                name,
                fields,
                list(inputs),
                [made],
                version={"BROADCAST_TO": 2, "RESHAPE": 1}.get(name, self.version),
            )
        )
        return made

    def shape(self, tensor: int) -> tuple[int, ...]:
        return self.tensors[tensor].shape

    def model(self, *outputs: int) -> bytes:
        return write_model(ModelSpec(self.tensors, self.operators, self.inputs, list(outputs)))

    # Attention

    def transposed(self, x: int, *order: int) -> int:
        shape = [self.shape(x)[axis] for axis in order]
        return self.op("TRANSPOSE", [x, self.const(order, DType.I32)], shape)

    def reshaped(self, x: int, *shape: int) -> int:
        return self.op("RESHAPE", [x, self.const(shape, DType.I32)], shape)

    def product(self, x: int, y: int, adj_x: bool = False, adj_y: bool = False) -> int:
        a, b = self.shape(x), self.shape(y)
        rows, columns = a[-1] if adj_x else a[-2], b[-2] if adj_y else b[-1]
        lead = np.broadcast_shapes(a[:-2], b[:-2])
        return self.op("BATCH_MATMUL", [x, y], (*lead, rows, columns), adj_x=adj_x, adj_y=adj_y)

    def with_(self, name: str, x: int, y: int, **fields: Any) -> int:
        shape = np.broadcast_shapes(self.shape(x), self.shape(y))
        return self.op(name, [x, y], shape, **fields)

    def softmax(self, x: int, beta: float = 1.0) -> int:
        return self.op("SOFTMAX", [x], self.shape(x), beta=beta)


def plain(b: Building, lead: Sequence[int] = (B, N), t: int = T) -> tuple[int, int, int]:
    """Query, keys and values, heads first."""
    return b.given(*lead, t, H), b.given(*lead, S, H), b.given(*lead, S, D)


def whole(
    b: Building, scores: int, v: int, *, scale: float | None = 0.5, mask: int | None = None,
    beta: float = 1.0, adj_y: bool = False,
) -> int:  # fmt: skip
    if scale is not None:
        scores = b.with_("MUL", scores, b.const(scale))
    if mask is not None:
        scores = b.with_("ADD", scores, mask)
    return b.product(b.softmax(scores, beta), v, adj_y=adj_y)


def by_hand(lead: Sequence[int] = (B, N), mask: Sequence[int] | None = (B, 1, T, S)) -> bytes:
    b = Building()
    q, k, v = plain(b, lead)
    given = None if mask is None else b.given(*mask)
    return b.model(whole(b, b.product(q, k, adj_y=True), v, mask=given))


def divided() -> bytes:
    b = Building()
    q, k, v = plain(b)
    scores = b.with_("DIV", b.product(q, k, adj_y=True), b.const([2.0]))
    scores = b.with_("ADD", b.given(1, S), scores)
    return b.model(b.product(b.softmax(scores), v))


def selected(fill: float = -2.4e38, name: str = "SELECT_V2") -> bytes:
    b = Building()
    q, k, v = plain(b)
    scores = b.with_("MUL", b.const(0.25), b.product(q, k, adj_y=True))
    mask = b.given(*((B, 1, T, S) if name == "SELECT_V2" else (B, N, T, S)), dtype=DType.BOOL)
    fills = b.const(fill if name == "SELECT_V2" else np.full((B, N, T, S), fill))
    chosen = b.op(name, [mask, scores, fills], (B, N, T, S))
    return b.model(b.product(b.softmax(chosen), v))


def keras(t: int = T, *, back: bool = True) -> bytes:
    """Tokens first, transposed; a decoder's one token is reshaped."""
    b = Building()
    q, k, v = b.given(B, t, N, H), b.given(B, S, N, H), b.given(B, S, N, D)
    q = b.reshaped(q, B, N, 1, H) if t == 1 else b.transposed(q, 0, 2, 1, 3)
    scores = b.product(q, b.transposed(k, 0, 2, 3, 1))
    made = whole(b, scores, b.transposed(v, 0, 2, 1, 3), mask=b.given(1, 1, t, S))
    return b.model(b.transposed(made, 0, 2, 1, 3) if back else made)


def keras_2(t: int = T, *, adj_y: bool = False, back: bool = True) -> bytes:
    """A product of keys and queries, transposed; and RESHAPEs that change nothing."""
    b = Building()
    q, k, v = b.given(B, t, N, H), b.given(B, S, N, H), b.given(B, S, N, D)
    q = b.transposed(q, *((0, 2, 1, 3) if adj_y else (0, 2, 3, 1)))
    scores = b.product(b.transposed(k, 0, 2, 1, 3), q, adj_y=adj_y)
    scores = b.transposed(b.reshaped(scores, B, N, S, t), 0, 1, 3, 2)
    made = whole(b, scores, b.transposed(v, 0, 2, 1, 3), scale=None, mask=b.given(1, 1, t, S))
    made = b.reshaped(made, B, N, t, D)
    return b.model(b.transposed(made, 0, 2, 1, 3) if back else made)


def keys_first(adj_y: bool, lead: Sequence[int] = (B, N), order: Sequence[int] = ()) -> bytes:
    """The same of heads that were first, or (with another order) what is no attention."""
    b = Building()
    q = b.given(*lead, *((S, H) if order else (T, H))[:: 1 if adj_y else -1])
    k, v = b.given(*lead, S, H), b.given(*lead, S, D)
    scores, rank = b.product(k, q, adj_y=adj_y), len(lead)
    scores = b.transposed(scores, *(order or (*range(rank), rank + 1, rank)))
    return b.model(whole(b, scores, v))


def grouped(heads: int, op: str = "TILE", groups: tuple[int, int] = (2, 2)) -> bytes:
    """Keys and values of fewer heads, each repeated; heads first, or tokens (``heads`` is their
    axis)."""
    b = Building()

    def repeated(width: int, groups: int, each: int) -> int:
        shape = (B, groups, 1, S, width) if heads == 1 else (B, S, groups, 1, width)
        x = b.reshaped(b.given(*(s for i, s in enumerate(shape) if i != heads + 1)), *shape)
        more = [each if i == heads + 1 else 1 for i in range(5)]
        wide = [s * m for s, m in zip(shape, more, strict=True)]
        x = b.op(op, [x, b.const(more if op == "TILE" else wide, DType.I32)], wide)
        x = b.reshaped(x, *wide[:heads], groups * each, *wide[heads + 2 :])
        return x if heads == 1 else b.transposed(x, 0, 2, 1, 3)

    q = b.given(B, 4, T, H) if heads == 1 else b.transposed(b.given(B, T, 4, H), 0, 2, 1, 3)
    k, v = (repeated(w, n, 4 // n) for w, n in zip((H, D), groups, strict=True))
    made = whole(b, b.product(q, k, adj_y=True), v, mask=b.given(B, 1, T, S))
    return b.model(made if heads == 1 else b.transposed(made, 0, 2, 1, 3))


def quantized() -> bytes:
    b = Building(Quantization((0.05,), (3,)))
    q, k, v = plain(b)
    return b.model(whole(b, b.product(q, k, adj_y=True), v, scale=None, mask=b.given(B, 1, T, S)))


def other_orders() -> bytes:
    """Keys with numbers before tokens, values likewise."""
    b = Building()
    q, k, v = b.given(B, N, T, H), b.given(B, N, H, S), b.given(B, N, D, S)
    return b.model(whole(b, b.product(q, k), v, adj_y=True))


YES = {
    "by hand": by_hand(),
    "no mask": by_hand(mask=None),
    "three axes": by_hand((N,), (N, T, S)),
    "two axes": by_hand((), (S,)),
    "five axes": by_hand((2, 1, N), (2, 1, 1, 1, S)),
    "divided, mask first": divided(),
    "selected": selected(),
    "selected of all": selected(-np.inf, "SELECT"),
    "Keras 2": keras_2(),
    "Keras 2, queries in rows": keras_2(adj_y=True),
    "Keras 2, not back": keras_2(back=False),
    "Keras 2, one token": keras_2(1),
    "keys first": keys_first(False),
    "keys first, queries in rows": keys_first(True, (N,)),
    "Keras": keras(),
    "Keras, not back": keras(back=False),
    "one token": keras(1),
    "one token, not back": keras(1, back=False),
    "other orders": other_orders(),
    "groups of heads": grouped(1),
    "groups, tokens first": grouped(2, "BROADCAST_TO"),
    "groups of other sizes": grouped(1, groups=(2, 4)),
}


def two_masks(first: Sequence[int] = (1, N, T, S), second: Sequence[int] = (B, 1, T, S)) -> bytes:
    b = Building()
    q, k, v = plain(b)
    scores = b.with_("ADD", b.product(q, k, adj_y=True), b.given(*first))
    return b.model(whole(b, scores, v, scale=None, mask=b.given(*second)))


def windows(items: int = 1, *, places: bool = True) -> bytes:
    """As Swin has it: four windows an item, a bias for each place, a mask for each window."""
    b, rng = Building(), np.random.default_rng(8)
    q, k, v = plain(b, (4 * items, N))
    scores = b.with_("MUL", b.product(q, k, adj_y=True), b.const(0.5))
    if places:
        scores = b.with_("ADD", scores, b.const(rng.normal(size=(1, N, T, S))))
    seen = b.const(np.where(rng.random((1, 4, 1, T, S)) < 0.3, -100, 0))
    scores = b.with_("ADD", b.reshaped(scores, items, 4, N, T, S), seen)
    scores = b.reshaped(scores, 4 * items, N, T, S)
    return b.model(b.product(b.softmax(scores), v))


YES |= {
    "two masks": two_masks(),
    "windows": windows(),
    "windows only": windows(places=False),
}


def changed(**how: Any) -> bytes:
    """What is not attention, or not only."""
    b = Building()
    lead = how.get("lead", (B, N))
    q, k, v = plain(b)
    if "lead" in how:
        k = b.given(*lead, S, H)
    if how.get("adj_x"):
        q = b.given(B, N, H, T)
    scores = b.product(q, k, adj_x=how.get("adj_x", False), adj_y=True)
    scaled = b.with_("MUL", scores, b.const(how.get("scale", 0.5)))
    mask = b.given(*how.get("mask", (T, S)))
    masked = b.with_("ADD", scaled, mask, fused_activation_function=how.get("activation", 0))
    shares = b.softmax(masked, how.get("beta", 1.0))
    made = b.product(shares, v)
    named = {"scores": scores, "scaled": scaled, "masked": masked, "shares": shares}
    more = [named[how["also"]]] if "also" in how else []
    if "taken" in how:
        more = [b.with_("ADD", named[how["taken"]], b.const(1.0))]
    return b.model(made, *more)


NO = {
    "scores are a result": changed(also="scores"),
    "scaled scores are taken": changed(taken="scaled"),
    "masked scores are taken": changed(taken="masked"),
    "shares are a result": changed(also="shares"),
    "shares are taken": changed(taken="shares"),
    "beta": changed(beta=2.0),
    "an activation": changed(activation=1),
    "a scale each key": changed(scale=np.linspace(0.5, 1, S)),
    "a scale that is none": changed(scale=np.inf),
    "a mask for all keys": changed(mask=(T, 1)),
    "one number for a mask": changed(mask=()),
    "keys of fewer heads": changed(lead=(B, 1)),
    "a query of columns": changed(adj_x=True),
    "filled with infinity": selected(np.inf),
    "filled with no number": selected(np.nan),
    "transposed otherwise": keys_first(True, (2, 2), (1, 0, 2, 3)),
    "whole numbers": quantized(),
    "a window's mask for several items": windows(2),
    "a second mask for all keys": two_masks(second=(T, 1)),
}


@pytest.fixture(scope="module")
def kernels(require_backend: Any) -> Iterator[GpuDelegate]:
    require_backend("cpu_ref")
    with GpuDelegate(backend="cpu_ref", device=1, enable_serialization=False) as made:
        yield made


def compiled(delegate: GpuDelegate, content: bytes) -> Any:
    graph = build_graph(read_model(content), 0, delegate.provider.ops)
    return compiled_on(graph, delegate.provider)


def ops(delegate: GpuDelegate, content: bytes) -> list[str]:
    return [node.op for node in compiled(delegate, content).graph]


def feeds(content: bytes, special: bool = False) -> list[Array]:
    rng, found = np.random.default_rng(3), []
    for tensor in (read_model(content).subgraphs[0].tensors[i] for i in inputs_of(content)):
        if tensor.dtype is DType.BOOL:
            found.append(rng.random(tensor.shape) < 0.7)
        else:
            found.append(rng.normal(size=tensor.shape).astype(np.float32))
    if special:
        mask = found[3]
        mask[...] = np.where(rng.random(mask.shape) < 0.4, -np.inf, mask)
        mask[0, 0, 1], mask[0, 0, 2, 3], mask[1, 0, 0, 2] = -np.inf, np.nan, np.inf
        found[2][1, 1, 4, 2], found[0][1, 2, 3, 0] = np.nan, np.inf
    return found


def inputs_of(content: bytes) -> tuple[int, ...]:
    return read_model(content).subgraphs[0].inputs


def ran(interpreter: Any, given: Sequence[Array]) -> Array:
    return first_results(interpreter, given)[0]


@pytest.mark.parametrize("name", YES)
def test_it_is_found_and_gives_what_litert_gives(name: str, kernels: GpuDelegate) -> None:
    content = YES[name]
    given = feeds(content)
    found = ops(kernels, content)
    assert NAME in found
    assert "SOFTMAX" not in found
    assert "BATCH_MATMUL" not in found
    if name in ("Keras", "Keras 2", "Keras 2, queries in rows", "one token"):
        assert "TRANSPOSE" not in found
    assert bool({"TILE", "BROADCAST_TO"} & set(found)) == (name == "groups of other sizes")
    assert found.count("ADD") == (name == "two masks")  # of constants it is done beforehand
    with Interpreter(model_content=content, experimental_delegates=[kernels]) as mine:
        got = ran(mine, given)
        assert not mine.report.refusals
    np.testing.assert_allclose(got, ran(LiteRT(model_content=content), given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NO)
def test_what_only_looks_like_it_stays(name: str, kernels: GpuDelegate) -> None:
    found = ops(kernels, NO[name])
    assert NAME not in found
    assert found.count("BATCH_MATMUL") == 2


@pytest.mark.parametrize("backend", ["cpu_ref", "opencl"])
def test_numbers_that_are_none_and_infinities(backend: str, kernels: GpuDelegate) -> None:
    """A query without a key, with one that is not a number or infinite; a value that is no
    number."""
    content = by_hand()
    given = feeds(content, special=True)
    expected = ran(LiteRT(model_content=content), given)
    assert np.isnan(expected).any()
    assert np.isfinite(expected).any()
    delegate = kernels if backend == "cpu_ref" else GpuDelegate(backend=backend)
    with Interpreter(model_content=content, experimental_delegates=[delegate]) as mine:
        np.testing.assert_allclose(ran(mine, given), expected, rtol=1e-5, atol=1e-6)
    if delegate is not kernels:
        delegate.close()


@pytest.mark.parametrize("hidden", [-1e9, np.finfo(np.float32).min])
def test_a_query_that_a_mask_beyond_f16_hides_from_all_keys(hidden: float) -> None:
    """It has equal shares of all values, as in f32: a number that is no infinity in the file."""
    b = Building()
    q, k, v = plain(b)
    mask = np.zeros((1, 1, T, S), np.float32)
    mask[0, 0, :, 4:] = mask[0, 0, 2] = hidden
    content = b.model(whole(b, b.product(q, k, adj_y=True), v, mask=b.const(mask)))
    given = feeds(content)
    with (
        GpuDelegate(backend="cpu_ref", device=1, precision="f16") as delegate,
        Interpreter(model_content=content, experimental_delegates=[delegate]) as mine,
    ):
        assert ops(delegate, content) == [NAME]
        got = ran(mine, given)
    expected = ran(LiteRT(model_content=content), given)
    np.testing.assert_allclose(got, expected, rtol=5e-3, atol=5e-3)


def test_where_all_tensors_are_kept_it_stays(kernels: GpuDelegate) -> None:
    content = by_hand()
    with Interpreter(
        model_content=content, experimental_delegates=[kernels],
        experimental_preserve_all_tensors=True,
    ) as mine:  # fmt: skip
        given = feeds(content)
        expected = ran(LiteRT(model_content=content), given)
        np.testing.assert_allclose(ran(mine, given), expected, rtol=1e-5, atol=1e-6)
        softmax = read_model(content).subgraphs[0].operators[-2]
        assert mine.get_tensor(softmax.outputs[0]).sum(-1) == pytest.approx(1.0)


@pytest.mark.needs("cpu_ref")
def test_operators_that_are_kept_off_keep_it_apart() -> None:
    with GpuDelegate(backend="cpu_ref", device=1, exclude=["SOFTMAX"]) as delegate:
        found = compiled(delegate, by_hand())
    assert [node.op for part in found.parts if not part.delegated for node in part.nodes] == [
        "SOFTMAX"
    ]


def test_what_would_stay_on_the_cpu_runs_as_its_operators(
    kernels: GpuDelegate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node would run by NumPy there, and LiteRT has kernels for the operators."""
    from tflgpu.compiler import compile as compiling
    from tflgpu.compiler.build import OverLimit

    plan_of = compiling.plan_of

    def limited(nodes: Any, *more: Any) -> Any:
        for node in nodes:
            if node.op == NAME:
                raise OverLimit(node, "too much shared memory")
        return plan_of(nodes, *more)

    monkeypatch.setattr(compiling, "plan_of", limited)
    found = compiled(kernels, by_hand())
    assert NAME not in [node.op for node in found.graph]
    assert all(part.delegated for part in found.parts)
