"""Models with several subgraphs, by names, and what LiteRT and tflgpu make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.tflite.model_file import SignatureInfo
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model

F32, I32, BOOL, RESOURCE = DType.F32, DType.I32, DType.BOOL, DType.RESOURCE

#: (op, operands by name, results by name, options)
Op = tuple[str, str, str] | tuple[str, str, str, dict[str, Any]]


def tensor(
    name: str, shape: Sequence[int] = (2,), dtype: DType = F32, quant: Quantization | None = None
) -> TensorSpec:
    return TensorSpec(name, tuple(shape), dtype, quantization=quant)


def const(name: str, data: object, dtype: DType = F32) -> TensorSpec:
    array = np.asarray(data, dtype.numpy)
    return TensorSpec(name, array.shape, dtype, array)


def number(name: str, value: int | list[int]) -> TensorSpec:
    return const(name, value, I32)


def subgraph(
    tensors: Sequence[TensorSpec], ops: Sequence[Op], inputs: str, outputs: str, name: str = ""
) -> SubgraphSpec:
    names = [t.name for t in tensors]

    def indices(text: str) -> list[int]:
        return [names.index(n) for n in text.split()]

    operators = [
        OperatorSpec(op[0], op[3] if len(op) > 3 else {}, indices(op[1]), indices(op[2]))
        for op in ops
    ]
    return SubgraphSpec(tensors, operators, indices(inputs), indices(outputs), name)


def model(
    main: SubgraphSpec, *others: SubgraphSpec, signatures: Sequence[SignatureInfo] = ()
) -> bytes:
    return write_model(
        ModelSpec(
            main.tensors, main.operators, main.inputs, main.outputs, signatures,
            subgraphs=others,
        )
    )  # fmt: skip


def loop(cond: int, body: int) -> dict[str, int]:
    return {"cond_subgraph_index": cond, "body_subgraph_index": body}


def branch(then: int, otherwise: int) -> dict[str, int]:
    return {"then_subgraph_index": then, "else_subgraph_index": otherwise}


def variable(name: str = "v") -> dict[str, str]:
    return {"shared_name": name}


#: Of a loop whose state is a counter and something of shape (2,): while i < limit.
STATE = (tensor("i", (), I32), tensor("x"))


def up_to(limit: int, *more: TensorSpec) -> SubgraphSpec:
    return subgraph(
        [*STATE, *more, number("n", limit), tensor("c", (), BOOL)], [("LESS", "i n", "c")],
        " ".join(t.name for t in (*STATE, *more)), "c", "cond",
    )  # fmt: skip


def counting(
    tensors: Sequence[TensorSpec], ops: Sequence[Op], outputs: str, inputs: str = "i x"
) -> SubgraphSpec:
    """A body that adds one to i, and does ``ops``."""
    return subgraph(
        [*STATE, number("one", 1), tensor("i2", (), I32), *tensors],
        [("ADD", "i one", "i2"), *ops], inputs, f"i2 {outputs}", "body",
    )  # fmt: skip


def initializer(value: object, name: str = "v", dtype: DType = F32) -> SubgraphSpec:
    """What CALL_ONCE runs: a variable gets its first value."""
    return subgraph(
        [tensor("h", (), RESOURCE), const("first", value, dtype)],
        [("VAR_HANDLE", "", "h", variable(name)), ("ASSIGN_VARIABLE", "h first", "")], "", "",
        "init",
    )  # fmt: skip


def accumulator(*before: Op, name: str = "v") -> SubgraphSpec:
    """``v += x``, and v; ``before`` comes first."""
    return subgraph(
        [tensor("x"), tensor("h", (), RESOURCE), tensor("old"), tensor("new")],
        [
            *before,
            ("VAR_HANDLE", "", "h", variable(name)),
            ("READ_VARIABLE", "h", "old"),
            ("ADD", "old x", "new"),
            ("ASSIGN_VARIABLE", "h new", ""),
        ],
        "x", "new",
    )  # fmt: skip


Feeds = Sequence[Sequence[object]]


def outputs(make: Callable[..., Any], content: bytes, feeds: Feeds) -> list[tuple[Array, Any]]:
    """Each output of each run, and its shape by the details."""
    interpreter = make(model_content=content)
    interpreter.allocate_tensors()
    found = []
    for given in feeds:
        for details, value in zip(interpreter.get_input_details(), given, strict=True):
            interpreter.set_tensor(details["index"], np.asarray(value, details["dtype"]))
        interpreter.invoke()
        found += [
            (np.array(interpreter.get_tensor(d["index"])), tuple(d["shape"]))
            for d in interpreter.get_output_details()
        ]
    return found


def same(mine: list[tuple[Array, Any]], theirs: list[tuple[Array, Any]]) -> None:
    assert len(mine) == len(theirs)
    for (got, shape), (want, other) in zip(mine, theirs, strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        assert shape == other == want.shape
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


#: A loop of two tensors, whose condition is subgraph 1 and whose body is subgraph 2.
WHILE = ("WHILE", "i x", "io xo", loop(1, 2))
MAIN = subgraph([*STATE, tensor("io", (), I32), tensor("xo")], [WHILE], "i x", "io xo")
