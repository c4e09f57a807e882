"""STABLEHLO_COMPOSITE is read as the operators that it is made of, and gives what LiteRT gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from flatbuffers import flexbuffers
from tflgpu.compiler import trial
from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.small_models import small_model
from tests.tflite.composite_models import Body, as_operators, became, by_litert, drawn, here, model
from tests.tflite.test_composite_layers import ROPE, rope, swiglu
from tests.tflite.test_composite_layers import attention as attention_block

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

F32, I32 = DType.F32, DType.I32


def composite(
    body: int, inputs: list[int], outputs: list[int], name: str = "odml.rms_norm"
) -> OperatorSpec:
    attributes = tuple(flexbuffers.Dumps({"epsilon": 1e-5}))
    fields = {
        "name": name, "decomposition_subgraph_index": body,
        "composite_attributes": () if "attention" in name else attributes,
    }  # fmt: skip
    return OperatorSpec("STABLEHLO_COMPOSITE", fields, inputs, outputs)


def rms_norm(shape: tuple[int, ...] = (3, 6)) -> SubgraphSpec:
    """x / sqrt(mean(x^2) + 1e-5) * weight."""
    rows = (*shape[:-1], 1)
    tensors = [
        TensorSpec("x", shape), TensorSpec("weight", shape[-1:]), TensorSpec("squares", shape),
        TensorSpec("axis", (1,), I32, [len(shape) - 1]), TensorSpec("mean", rows),
        TensorSpec("epsilon", (), data=1e-5), TensorSpec("sum", rows), TensorSpec("scale", rows),
        TensorSpec("scaled", shape), TensorSpec("y", shape),
    ]  # fmt: skip
    operators = [
        OperatorSpec("MUL", {}, [0, 0], [2]), OperatorSpec("MEAN", {"keep_dims": True}, [2, 3],
        [4]),
        OperatorSpec("ADD", {}, [4, 5], [6]), OperatorSpec("RSQRT", {}, [6], [7]),
        OperatorSpec("MUL", {}, [0, 7], [8]), OperatorSpec("MUL", {}, [8, 1], [9]),
    ]  # fmt: skip
    return SubgraphSpec(tensors, operators, [0, 1], [9])


EMPTY = SubgraphSpec([], [], [], [])


def twice() -> ModelSpec:
    """Two composites of one decomposition, one after the other."""
    x, weight = TensorSpec("x", (3, 6)), TensorSpec("w", (6,), data=[1, 2, -1, 0.5, 3, 1])
    operators = [
        OperatorSpec("ABS", {}, [0], [2]), composite(1, [2, 1], [3]),
        OperatorSpec("ADD", {}, [3, 0], [4]), composite(1, [4, 1], [5]),
    ]  # fmt: skip
    tensors = [x, weight, *(TensorSpec(f"t{i}", (3, 6)) for i in range(4))]
    return ModelSpec(tensors, operators, [0], [5], subgraphs=[rms_norm()])


def nested() -> ModelSpec:
    """A composite in another's decomposition, in another order of tensors."""
    outer = SubgraphSpec(
        [TensorSpec("w", (6,)), TensorSpec("y", (3, 6)), TensorSpec("x", (3, 6)), TensorSpec("z",
        (3, 6))],
        [composite(1, [2, 0], [3]), OperatorSpec("NEG", {}, [3], [1])], [2, 0], [1],
    )  # fmt: skip
    tensors = [TensorSpec("x", (3, 6)), TensorSpec("w", (6,)), TensorSpec("y", (3, 6))]
    return ModelSpec(
        tensors, [composite(2, [0, 1], [2])], [0, 1], [2], subgraphs=[rms_norm(), outer]
    )


def given_back(shape: tuple[int, ...]) -> ModelSpec:
    """A composite that gives an operand, a constant, and one result twice."""
    t = [TensorSpec(n, shape) for n in "abcdef"]
    body = SubgraphSpec(
        [t[0], TensorSpec("one", shape, data=np.ones(shape, np.float32)), t[1]],
        [OperatorSpec("NEG", {}, [0], [2])], [0], [0, 1, 2, 2],
    )  # fmt: skip
    whole = composite(1, [0], [1, 2, 3, 4], "mine")
    return ModelSpec(t[:5], [whole], [0], [1, 2, 3, 4], subgraphs=[body])


def in_a_loop() -> ModelSpec:
    """A composite in the body of a WHILE."""
    i, x = TensorSpec("i", (), I32), TensorSpec("x", (3, 6))
    cond = SubgraphSpec(
        [i, x, TensorSpec("n", (), I32, 3), TensorSpec("more", (), DType.BOOL)],
        [OperatorSpec("LESS", {}, [0, 2], [3])], [0, 1], [3],
    )  # fmt: skip
    body = SubgraphSpec(
        [i, x, TensorSpec("one", (), I32, 1), TensorSpec("w", (6,), data=[1, 2, 3, 4, 5, 6.0]), i,
        x],
        [OperatorSpec("ADD", {}, [0, 2], [4]), composite(3, [1, 3], [5])], [0, 1], [4, 5],
    )  # fmt: skip
    loop = OperatorSpec(
        "WHILE", {"cond_subgraph_index": 1, "body_subgraph_index": 2}, [0, 1], [2, 3]
    )
    start = TensorSpec("start", (), I32, 0)
    return ModelSpec([start, x, i, x], [loop], [1], [3], subgraphs=[cond, body, rms_norm()])


def attention() -> ModelSpec:
    """Without attributes, on which LiteRT ends the process."""
    q = (1, 2, 3, 4)
    t = [TensorSpec(n, q) for n in "qkv"]
    body = SubgraphSpec(
        [*t, TensorSpec("scores", (1, 2, 3, 3)), TensorSpec("p", (1, 2, 3, 3)), TensorSpec("y", q)],
        [OperatorSpec("BATCH_MATMUL", {"adj_y": True}, [0, 1], [3]),
         OperatorSpec("SOFTMAX", {"beta": 1.0}, [3], [4]),
         OperatorSpec("BATCH_MATMUL", {}, [4, 2], [5])], [0, 1, 2], [5],
    )  # fmt: skip
    whole = composite(1, [0, 1, 2], [3], "odml.scaled_dot_product_attention")
    return ModelSpec([*t, TensorSpec("y", q)], [whole], [0, 1, 2], [3], subgraphs=[body])


def run(interpreter: object) -> list[Array]:
    interpreter.allocate_tensors()
    rng = np.random.default_rng(1)
    for detail in interpreter.get_input_details():
        drawn = rng.uniform(-2, 2, detail["shape"]).astype(np.float32)
        interpreter.set_tensor(detail["index"], drawn)
    interpreter.invoke()
    return [np.array(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()]


MODELS = {"twice": twice(), "nested": nested(), "loop": in_a_loop()}


def run_here(content: bytes, where: str) -> list[Array]:
    delegates = [tflgpu.GpuDelegate(backend="cpu_ref", device=1)] if where == "device" else []
    side = "cpu_ref" if where == "device" else where
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=delegates, cpu_backend=side
    ) as interpreter:
        return run(interpreter)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("where", ["litert", "cpu_ref", "device"])
def test_results_are_those_of_litert(name: str, where: str) -> None:
    content = write_model(MODELS[name])
    plain = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    wanted = run(litert.Interpreter(model_content=content, experimental_op_resolver_type=plain))
    got = run_here(content, where)
    for ours, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6)


@pytest.mark.parametrize("shape", [(2, 3), ()])
@pytest.mark.parametrize("where", ["litert", "cpu_ref", "device"])
def test_what_is_given_back_is_copied(shape: tuple[int, ...], where: str) -> None:
    """LiteRT gives whatever is in memory for operands and constants that a composite gives back."""
    x = np.random.default_rng(1).uniform(-2, 2, shape).astype(np.float32)
    found = run_here(write_model(given_back(shape)), where)
    for ours, wanted in zip(found, (x, np.ones(shape), -x, -x), strict=True):
        np.testing.assert_array_equal(ours, wanted)


def test_attention_without_attributes_does_not_end_the_process() -> None:
    content = write_model(attention())
    found = []
    for side in ("litert", "cpu_ref"):
        with tflgpu.Interpreter(
            model_content=content, experimental_delegates=[], cpu_backend=side
        ) as interpreter:
            found += run(interpreter)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_operators_know_what_they_came_from() -> None:
    (main, *_) = read_model(write_model(nested())).subgraphs
    assert [o.name for o in main.operators] == ["MUL", "MEAN", "ADD", "RSQRT", "MUL", "MUL", "NEG"]
    assert [o.index for o in main.operators] == list(range(7))
    outer, inner = main.operators[0].composites
    assert (outer.inputs, outer.outputs, outer.index, outer.first) == ((0, 1), (2,), 0, 0)
    assert (inner.name, inner.inputs) == ("odml.rms_norm", (0, 1))
    assert main.operators[-1].composites == (outer,)
    assert main.inputs == (0, 1)
    assert [t.index for t in main.tensors] == list(range(len(main.tensors)))


def broken(**changes: object) -> bytes:
    """`twice` with another decomposition."""
    spec = twice()
    return write_model(attrs.evolve(spec, subgraphs=[attrs.evolve(rms_norm(), **changes)]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (broken(inputs=(0,)), "subgraph 1, takes 1 tensors, not 2"),
        (broken(outputs=(9, 9)), "subgraph 1, gives 2 tensors, not 1"),
        (broken(outputs=(3,)), "subgraph 1, gives i32, not f32"),
        (write_model(ModelSpec([TensorSpec("x", (1,)), TensorSpec("y", (1,))], [composite(0, [0],
        [1])],
                               [0], [1])), "subgraph 0 runs itself, by way of subgraph 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_model(content)


def test_composites_that_double_at_each_level_end_in_an_error() -> None:
    x = [TensorSpec(n, (1,)) for n in "abc"]
    bodies = [SubgraphSpec(x, [composite(i + 2, [0], [1]), composite(i + 2, [1], [2])], [0], [2])
              for i in range(25)]  # fmt: skip
    last = SubgraphSpec(x[:2], [OperatorSpec("NEG", {}, [0], [1])], [0], [1])
    main = ModelSpec(x[:2], [composite(1, [0], [1])], [0], [1], subgraphs=[*bodies, last])
    with pytest.raises(ModelError, match="the file asks for more than"):
        read_model(write_model(main))


def test_composites_without_operators_that_double_end_in_an_error() -> None:
    """Nothing is written for them, and yet there are 2 ** 30 of them."""
    bodies = [SubgraphSpec([], [composite(i + 2, [], [])] * 2, [], []) for i in range(30)]
    main = ModelSpec([], [composite(1, [], [])], [], [], subgraphs=[*bodies, EMPTY])
    with pytest.raises(ModelError, match="the file asks for more than"):
        read_model(write_model(main))


def test_tensors_of_composites_count() -> None:
    tensors = [TensorSpec("x", (1,))] * 1200
    main = ModelSpec(
        [], [composite(1, [], [])] * 1200, [], [], subgraphs=[SubgraphSpec(tensors, [], [], [])]
    )
    with pytest.raises(ModelError, match="the file asks for more than"):
        read_model(write_model(main))


@pytest.mark.parametrize("downward", [True, False])
def test_a_long_chain_of_composites_is_refused(downward: bool) -> None:
    """Also one that is found from its end, so that each subgraph's size is known when it is asked
    for."""
    numbers = range(2, 61) if downward else range(1, 60)
    chain = [SubgraphSpec([], [composite(n, [], [])], [], []) for n in numbers]
    bodies = [*chain, EMPTY] if downward else [EMPTY, *chain]
    with pytest.raises(ModelError, match="more than 32 deep in each other"):
        read_model(small_model({}, subgraphs=bodies))


def test_a_model_without_tensors_may_leave_out_an_operand() -> None:
    body = SubgraphSpec([TensorSpec("x", (1,))], [], [0], [])
    read_model(write_model(ModelSpec([], [composite(1, [-1], [])], [], [], subgraphs=[body])))


# Composites of normalization run as one kernel where that gives what LiteRT gives.


pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


def rms(
    shape: tuple[int, ...], *, scale: bool = True, extra: float = 1.0
) -> tuple[Body, list[int]]:
    """As litert-torch's RMSNorm; ``extra`` multiplies the result, which no attribute says."""
    body = Body()
    x = body.given(shape)
    gamma = body.given(shape[-1:]) if scale else None
    mean = body.mean(body.same("MUL", x, x), len(shape) - 1)
    y = body.same("MUL", x, body.same("RSQRT", body.same("ADD", mean, body.const(1e-5))))
    if extra != 1.0:
        y = body.same("MUL", y, body.const(extra))
    return body, [y if gamma is None else body.same("MUL", y, gamma)]


def layer(shape: tuple[int, ...], axes: tuple[int, ...] = (-1,)) -> tuple[Body, list[int]]:
    body = Body()
    x, gamma, beta = body.given(shape), body.given(shape[-1:]), body.given(shape[-1:])
    axes = tuple(a % len(shape) for a in axes)
    gap = body.same("SUB", x, body.mean(x, *axes))
    variance = body.mean(body.same("MUL", gap, gap), *axes)
    root = body.same("RSQRT", body.same("ADD", variance, body.const(1e-5)))
    y = body.same("MUL", body.same("MUL", gap, root), gamma)
    return body, [body.same("ADD", y, beta)]


def group(shape: tuple[int, ...], groups: int) -> tuple[Body, list[int]]:
    body = Body()
    x, gamma, beta = body.given(shape), body.given(shape[-1:]), body.given(shape[-1:])
    many = int(np.prod(shape[1:-1]))
    parts = body.reshape(x, shape[0], many, groups, shape[-1] // groups)
    gap = body.same("SUB", parts, body.mean(parts, 1, 3))
    variance = body.mean(body.same("MUL", gap, gap), 1, 3)
    root = body.same("RSQRT", body.same("ADD", variance, body.const(1e-5)))
    y = body.reshape(body.same("MUL", gap, root), *shape)
    return body, [body.same("ADD", body.same("MUL", y, gamma), beta)]


EPSILON = {"epsilon": 1e-5}
GROUPS = {"num_groups": 3, "epsilon": 1e-5, "reduction_axes": 3, "channel_axis": 3}
#: name: composite, attributes, body, op
CASES: dict[str, Any] = {
    "rms": ("odml.rms_norm", EPSILON, rms((2, 3, 7)), "RMS_NORMALIZATION"),
    "rms_alone": ("odml.rms_norm", EPSILON, rms((3, 8), scale=False), "RMS_NORMALIZATION"),
    "layer": (
        "odml.group_norm", {"num_groups": 1, "epsilon": 1e-5, "channel_axis": 1}, layer((2, 3, 7)),
        "LAYER_NORMALIZATION",
    ),
    "group": ("odml.group_norm", GROUPS, group((2, 2, 5, 12), 3), "GROUP_NORMALIZATION"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_gives_what_litert_gives(name: str) -> None:
    composite, attributes, (body, outputs), op = CASES[name]
    content = model(composite, attributes, body, outputs)
    arrays = drawn(content)
    found, report = here(content, arrays)
    assert became(report) == [(op, "")]
    assert report.dispatches == 1
    np.testing.assert_allclose(found[0], by_litert(content, arrays)[0], rtol=2e-6, atol=2e-6)
    # LiteRT's MUL makes the largest number of an infinity (docs/nan.md), so operators here say it.
    arrays[0].reshape(-1)[[1, 9]] = np.inf, np.nan
    (wanted,) = as_operators(content, arrays)
    np.testing.assert_allclose(here(content, arrays)[0][0], wanted, rtol=2e-6, atol=2e-6)
    assert np.isfinite(wanted).any()


@pytest.mark.parametrize("precision", ["f16", "f32_f16"])
def test_other_precisions(precision: str) -> None:
    composite, attributes, (body, outputs), _ = CASES["layer"]
    content = model(composite, attributes, body, outputs)
    arrays = drawn(content)
    found, report = here(content, arrays, precision=precision)
    assert report.dispatches == 1
    np.testing.assert_allclose(found[0], by_litert(content, arrays)[0], rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(
    ("composite", "attributes", "made", "why"),
    [
        ("odml.rms_norm", EPSILON, rms((3, 8), extra=1.01), "computes something else: off by"),
        ("odml.rms_norm", {"epsilon": 1e-3}, rms((3, 8)), "computes something else: off by"),
        ("odml.rms_norm", {}, rms((3, 8)), "it has no attribute epsilon"),
        ("odml.rms_norm", {"epsilon": 1e-5, "bias": 1}, rms((3, 8)), ("its attribute 'bias' is "
                                                                     "not understood")),
        ("odml.rms_norm", EPSILON, layer((3, 8)), "it has 3 operands, and 1 to 2 are known"),
        ("odml.no_norm", EPSILON, rms((3, 8)), ("no op is known that computes 'odml.no_norm' as "
                                               "one")),
        ("odml.group_norm", GROUPS, group((1, 2, 2, 9), 3), ("groups of 3 channels; its kernel "
                                                            "takes")),
        ("odml.group_norm", {"num_groups": 1, "epsilon": 1e-5}, layer((2, 3, 8), (-1, -2, 0)),
         "computes something else"),
    ],
)  # fmt: skip
def test_what_is_not_known_runs_as_operators(
    composite: str, attributes: dict[str, Any], made: tuple[Body, list[int]], why: str
) -> None:
    content = model(composite, attributes, *made)
    arrays = drawn(content)
    found, report = here(content, arrays)
    ((op, reason),) = became(report)
    assert op == ""
    assert why in reason
    assert f"runs as its operators: {reason}" in str(report)
    np.testing.assert_allclose(found[0], by_litert(content, arrays)[0], rtol=2e-6, atol=2e-6)


def test_a_newer_version_runs_as_operators() -> None:
    content = model("odml.rms_norm", EPSILON, *rms((3, 8)), version=2)
    _, report = here(content, drawn(content))
    assert became(report) == [("", "RMS_NORMALIZATION: version 2 is newer than 1")]


def test_constant_operands_and_reports() -> None:
    scale = np.linspace(0.5, 2, 8, dtype=np.float32)
    content = model("odml.rms_norm", EPSILON, *rms((3, 8)), constants={1: scale})
    arrays = drawn(content)
    found, report = here(content, arrays)
    assert became(report) == [("RMS_NORMALIZATION", "")]
    assert "composite 'odml.rms_norm' (at #0) runs as one RMS_NORMALIZATION" in str(report)
    assert report.to_dict()["composites"] == [
        {"name": "odml.rms_norm", "operators": [0, 1, 2, 3, 4, 5], "op": "RMS_NORMALIZATION",
         "reason": ""},
    ]  # fmt: skip
    assert report.fully_delegated
    np.testing.assert_allclose(found[0], by_litert(content, arrays)[0], rtol=2e-6)


def test_an_operator_that_is_kept_off_the_device_keeps_its_composite_apart() -> None:
    content = model("odml.layer_norm", EPSILON, *layer((3, 8)))
    arrays = drawn(content)
    found, report = here(content, arrays, exclude=["RSQRT"])
    ((op, reason),) = became(report)
    assert op == ""
    assert "RSQRT" in reason
    assert 0 < report.delegated_nodes < report.total_nodes  # as one it would be none
    np.testing.assert_allclose(found[0], by_litert(content, arrays)[0], rtol=2e-6, atol=2e-6)


def test_one_node_that_would_stay_on_the_cpu_leaves_the_operators_on_the_device() -> None:
    content = model("odml.layer_norm", EPSILON, *layer((3, 8)))
    arrays = drawn(content)
    found, report = here(content, arrays, min_nodes_per_partition=2)
    ((op, reason),) = became(report)
    assert op == ""
    assert reason.endswith("LAYER_NORMALIZATION, it would stay on the CPU")
    assert report.fully_delegated
    np.testing.assert_allclose(found[0], by_litert(content, arrays)[0], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("limit", "why"), [("_MOST_WORK", "too much work"), ("_MOST_ELEMENTS", "too large")]
)
def test_what_is_too_much_to_be_tried_runs_as_operators(
    monkeypatch: pytest.MonkeyPatch, limit: str, why: str
) -> None:
    monkeypatch.setattr(trial, limit, 20)
    content = model("odml.rms_norm", EPSILON, *rms((3, 8)))
    _, report = here(content, drawn(content))
    ((op, reason),) = became(report)
    assert op == ""
    assert why in reason


# A layer of a transformer, of composites: few kernels, and LiteRT's results.


pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


TOKENS, WIDTH, HEADS, SHARED, DEPTH, HIDDEN = 6, 24, 4, 2, 8, 20


class Layer(Body):
    """The layer's own operators, and its composites."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix
        self.bodies: list[SubgraphSpec] = []
        self.rng = np.random.default_rng(5)

    def weights(self, *shape: int) -> int:
        return self.const(self.rng.uniform(-0.4, 0.4, shape))

    def dense(self, x: int, width: int) -> int:
        shape = self.shape(x)
        weights = self.weights(width, shape[-1])
        return self.op("FULLY_CONNECTED", [x, weights], (*shape[:-1], width), keep_num_dims=True)

    def whole(
        self,
        name: str,
        attributes: Mapping[str, Any],
        made: tuple[Body, list[int]],
        given: Sequence[int],
    ) -> int:
        body, outputs = made
        self.bodies.append(SubgraphSpec(body.tensors, body.operators, body.inputs, outputs))
        result = self._tensor(body.shape(outputs[0]), DType.F32)
        fields = {
            "name": self.prefix + name, "decomposition_subgraph_index": len(self.bodies),
            "composite_attributes": tuple(flexbuffers.Dumps(dict(attributes))),
        }  # fmt: skip
        self.operators.append(OperatorSpec("STABLEHLO_COMPOSITE", fields, list(given), [result]))
        return result

    def norm(self, x: int) -> int:
        return self.whole("rms_norm", EPSILON, rms(self.shape(x)), [x, self.weights(WIDTH)])


def layer_block(prefix: str) -> bytes:
    """One whose composites' names start so."""
    b = Layer(prefix)
    x, at, mask = (
        b.given((1, TOKENS, WIDTH)),
        b.given((TOKENS,), DType.I32),
        b.given((1, 1, TOKENS, TOKENS)),
    )
    y = b.norm(x)
    heads = [
        b.reshape(b.dense(y, count * DEPTH), 1, TOKENS, count, DEPTH)
        for count in (HEADS, SHARED, SHARED)
    ]
    q, k = (b.whole("rope", ROPE, rope(b.shape(h), 1), [h, at]) for h in heads[:2])
    made = attention_block(1, TOKENS, TOKENS, HEADS, SHARED, DEPTH, mask=(1, 1, TOKENS, TOKENS))
    y = b.whole("scaled_dot_product_attention", {}, made, [q, k, heads[2], mask])
    x = b.same("ADD", x, b.dense(b.reshape(y, 1, TOKENS, HEADS * DEPTH), WIDTH))
    gates = b.dense(b.norm(x), 2 * HIDDEN)
    y = b.whole("swiglu", {"gate_size": HIDDEN}, swiglu(b.shape(gates)), [gates])
    y = b.same("ADD", x, b.dense(y, WIDTH))
    return write_model(ModelSpec(b.tensors, b.operators, b.inputs, [y], subgraphs=b.bodies))


@pytest.mark.parametrize(("precision", "close"), [("f32", 2e-5), ("f16", 2e-2)])
def test_few_kernels_and_the_same_results(precision: str, close: float) -> None:
    content, unknown = layer_block("odml."), layer_block("some.")
    arrays = drawn(content)
    arrays[1][...] = np.arange(TOKENS)
    arrays[2][...] = np.where(np.tri(TOKENS), 0, -1e4)
    (wanted,) = by_litert(content, arrays)
    (found,), report = here(content, arrays, precision=precision)
    (apart,), before = here(unknown, arrays, precision=precision)
    np.testing.assert_allclose(found, wanted, rtol=close, atol=close)
    np.testing.assert_allclose(apart, wanted, rtol=close, atol=close)
    assert [c.op for c in report.composites] == [
        "RMS_NORMALIZATION", "ROTARY_EMBEDDING", "ROTARY_EMBEDDING", "ATTENTION",
        "RMS_NORMALIZATION", "GATED_SILU",
    ]  # fmt: skip
    assert not any(c.op for c in before.composites)
    # Attention is found among the operators too, behind what repeats the heads of its keys.
    assert (report.dispatches, before.dispatches) == (9, 13)
