"""STABLEHLO_COMPOSITE is read as the operators that it is made of, and gives what LiteRT gives."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import tflgpu
from flatbuffers import flexbuffers
from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model

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
        read_model(write_model(ModelSpec([], [], [], [], subgraphs=bodies)))


def test_a_model_without_tensors_may_leave_out_an_operand() -> None:
    body = SubgraphSpec([TensorSpec("x", (1,))], [], [0], [])
    read_model(write_model(ModelSpec([], [composite(1, [-1], [])], [], [], subgraphs=[body])))
