"""Which reads of a variable are known to give a tensor of the same subgraph."""

from __future__ import annotations

import pytest
from tflgpu.flow.forward import forwarded
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.read import read_model

from tests.flow.flow_models import (
    F32,
    I32,
    RESOURCE,
    branch,
    initializer,
    model,
    subgraph,
    tensor,
    variable,
)

H = ("VAR_HANDLE", "", "h", variable())
FETCH, WRITE = ("READ_VARIABLE", "h", "r"), ("ASSIGN_VARIABLE", "h x", "")
USE = ("ABS", "r", "y")
CALLED = ("CALL_ONCE", "", "", {"init_subgraph_index": 1})
G = ("VAR_HANDLE", "", "g", variable("w"))

#: By what the last operator, ABS, reads then: operators before it.
CASES = {
    "assigned": ("x", [H, WRITE, FETCH]),
    "read twice": ("s", [H, ("READ_VARIABLE", "h", "s"), FETCH]),
    "nothing known": ("r", [H, FETCH]),
    "a subgraph may assign": ("r", [H, WRITE, CALLED, FETCH]),
    "another variable is assigned": ("x", [H, G, WRITE, ("ASSIGN_VARIABLE", "g s", ""), FETCH]),
    "what is given may be the same variable": (
        "r", [H, WRITE, ("ASSIGN_VARIABLE", "given s", ""), FETCH],
    ),
    "two names of one variable": (
        "s", [H, ("VAR_HANDLE", "", "g", variable()), WRITE, ("ASSIGN_VARIABLE", "g s", ""), FETCH],
    ),
    "a branch that may assign": ("r", [H, WRITE, ("IF", "c", "", branch(1, 1)), FETCH]),
    "a branch that assigns nothing": ("x", [H, WRITE, ("IF", "c", "", branch(2, 2)), FETCH]),
}  # fmt: skip


def _taken(ops: object, read: DType = F32, quant: Quantization | None = None) -> str:
    tensors = [
        tensor("x"), tensor("s"), tensor("c", (), DType.BOOL), tensor("h", (), RESOURCE),
        tensor("g", (), RESOURCE), tensor("given", (), RESOURCE), tensor("r", (2,), read,
        quant=quant),
        tensor("y", (2,), read),
    ]  # fmt: skip
    main = subgraph(tensors, [*ops, USE], "x s c given", "y")  # type: ignore[misc]
    file = read_model(model(main, initializer([1, 2]), subgraph([], [], "", "")))
    info = forwarded(file.subgraphs[0], file.subgraphs)
    assert [o.index for o in info.operators] == list(range(len(info.operators)))
    return info.tensors[info.operators[-1].inputs[0]].name


@pytest.mark.parametrize("case", CASES)
def test_a_read_is_replaced_where_what_it_gives_is_known(case: str) -> None:
    expected, ops = CASES[case]
    assert _taken(ops) == expected


def test_numbers_that_mean_something_else_are_read() -> None:
    assert _taken([H, WRITE, FETCH], read=I32) == "r"
    assert _taken([H, WRITE, FETCH], quant=Quantization((0.5,), (0,))) == "r"
