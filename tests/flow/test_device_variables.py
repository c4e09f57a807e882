"""Which variables stay on the device, and which stay in host memory and why."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT
from tflgpu.errors import DeviceError, StateError
from tflgpu.ir.dtypes import Quantization
from tflgpu.runtime.state import QUIET
from tflgpu.tflite.model_file import SignatureInfo

from tests.flow.flow_models import (
    BOOL,
    I32,
    RESOURCE,
    Op,
    branch,
    const,
    initializer,
    model,
    subgraph,
    tensor,
    variable,
)
from tests.flow.kept_variables import ADDING, ONCE, X, alike, litert, of_variables, step
from tests.watched_device import WatchedDevice


def held(ops: list[Op], inputs: str, outputs: str, *tensors: Any) -> Any:
    """A subgraph with a variable v."""
    return subgraph(
        [tensor("x"), tensor("h", (), RESOURCE), tensor("old"), tensor("new"), *tensors],
        [ONCE, ("VAR_HANDLE", "", "h", variable()), *ops], inputs, outputs,
    )  # fmt: skip


READ, ADD, ASSIGN = (
    ("READ_VARIABLE", "h", "old"),
    ("ADD", "old x", "new"),
    ("ASSIGN_VARIABLE", "h new", ""),
)
GET = subgraph(
    [tensor("x"), tensor("h", (), RESOURCE), tensor("v"), tensor("y")],
    [("VAR_HANDLE", "", "h", variable()), ("READ_VARIABLE", "h", "v"), ("ADD", "v x", "y")],
    "x", "y",
)  # fmt: skip
SAME = subgraph([tensor("x")], [], "x", "x")

#: Why a variable is not kept; "" where it is. All by the operators of the file.
FORMS: dict[str, tuple[bytes, str]] = {
    "what it held is a result": (
        model(held([READ, ADD, ASSIGN], "x", "old"), initializer([10, 20])),
        "what it held before a run is a result",
    ),
    "read again, and a result": (
        model(held([READ, ADD, ASSIGN, ("READ_VARIABLE", "h", "again")], "x", "again",
                   tensor("again")), initializer([10, 20])),
        "",
    ),
    "read again, and taken": (
        model(held([READ, ADD, ASSIGN, ("READ_VARIABLE", "h", "again"), ("MUL", "again x", "y")],
                   "x", "y", tensor("again"), tensor("y")), initializer([10, 20])),
        "",
    ),
    "only read": (
        model(held([READ, ADD], "x", "new"), initializer([10, 20])),
        "nothing assigns to it here",
    ),
    "only assigned": (
        model(held([("ADD", "x x", "new"), ASSIGN], "x", "new"), initializer([10, 20])),
        "nothing reads it before",
    ),
    "read in two forms": (
        model(held([READ, ("READ_VARIABLE", "h", "again"), ADD, ("MUL", "again new", "y"), ASSIGN],
                   "x", "y", tensor("again", quant=Quantization((0.5,), (0,))), tensor("y")),
              initializer([10, 20])),
        "it is read several times",
    ),
    "assigned twice": (
        model(held([READ, ADD, ASSIGN, ("ASSIGN_VARIABLE", "h x", "")], "x", "new"),
              initializer([10, 20])),
        "assigned to several times",
    ),
    "an input is assigned": (
        model(held([READ, ADD, ("ASSIGN_VARIABLE", "h x", "")], "x", "new"), initializer([10, 20])),
        "no result of a compiled operator",
    ),
    "a branch reads it between": (
        model(held([READ, ADD, ("LESS", "x old", "lt"), ("REDUCE_ALL", "lt ax", "c"),
                    ("IF", "c x", "y", branch(2, 3)), ASSIGN], "x", "y", tensor("y"),
                   tensor("lt", (2,), BOOL), tensor("c", (), BOOL), const("ax", [0], I32)),
              initializer([10, 20]), GET, SAME),
        "runs subgraphs that use variables",
    ),
    "a branch takes it": (
        model(held([READ, ADD, ("LESS", "x old", "lt"), ("REDUCE_ALL", "lt ax", "c"),
                    ("IF", "c new", "y", branch(2, 2)), ASSIGN], "x", "y", tensor("y"),
                   tensor("lt", (2,), BOOL), tensor("c", (), BOOL), const("ax", [0], I32)),
              initializer([10, 20]), SAME),
        "which the host runs, takes it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_which_variables_are_kept(
    name: str, device: WatchedDevice, opened: Callable[..., Any]
) -> None:
    content, why = FORMS[name]
    mine, theirs = opened(content), litert(content)
    for reason in of_variables(mine).values():
        assert (why in reason) if why else reason == ""
    alike(mine, theirs, QUIET + 3, [1, 30])
    assert bool(device.writes) == (not why)


def test_two_variables_of_which_another_signature_sets_one(
    device: WatchedDevice, opened: Callable[..., Any]
) -> None:
    """The other one comes home with what it is, and both go away again."""
    main = subgraph(
        [tensor("x"), *(tensor(n, (), RESOURCE) for n in "hg"), *map(tensor, "abcdy")],
        [
            ("CALL_ONCE", "", "", {"init_subgraph_index": 1}),
            ("CALL_ONCE", "", "", {"init_subgraph_index": 2}),
            ("VAR_HANDLE", "", "h", variable("v")), ("VAR_HANDLE", "", "g", variable("w")),
            ("READ_VARIABLE", "h", "a"), ("READ_VARIABLE", "g", "b"),
            ("ADD", "a x", "c"), ("ADD", "b c", "d"), ("MUL", "c d", "y"),
            ("ASSIGN_VARIABLE", "h c", ""), ("ASSIGN_VARIABLE", "g d", ""),
        ],
        "x", "y",
    )  # fmt: skip
    put = subgraph(
        [tensor("x"), tensor("h", (), RESOURCE), const("one", 1), tensor("y")],
        [
            ("VAR_HANDLE", "", "h", variable("w")), ("ASSIGN_VARIABLE", "h x", ""),
            ("ADD", "x one", "y"),
        ],
        "x", "y",
    )  # fmt: skip
    names = [t.name for t in main.tensors]
    content = model(
        main, initializer([1, 2]), initializer([0.5, 0.25], "w"), put,
        signatures=[
            SignatureInfo("run", 0, {"x": 0}, {"y": names.index("y")}),
            SignatureInfo("put", 3, {"x": 0}, {"y": 3}),
        ],
    )  # fmt: skip
    mine, theirs = opened(content), LiteRT(model_content=content)
    sides = [{k: m.get_signature_runner(k) for k in ("run", "put")} for m in (mine, theirs)]
    for n, key in enumerate(["run"] * (QUIET + 2) + ["put", "run", "run", "put", "run"] * 3):
        if n == 2 * QUIET + 4:
            device.fails = [DeviceError("no")]
            with pytest.raises(DeviceError):
                sides[0]["run"](x=X * 50)
        given = (X / (n + 1)).astype(np.float32)
        found, expected = (side[key](x=given)["y"] for side in sides)
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=f"call {n}, {key}")
    assert device.writes >= 2


def beside(op: str) -> bytes:
    """A variable, and an operator that has nothing to do with it, or makes what it becomes."""
    ops: list[Op] = [READ, ADD, ASSIGN, ("ABS", "x", "a"), ("NEG", "a", "b"), ("MUL", "b x", "y")]
    if op == "made":
        ops = [READ, ("ABS", "old", "a"), ("NEG", "a", "b"), ("ADD", "b x", "new"), ASSIGN,
               ("MUL", "new x", "y")]  # fmt: skip
    return model(held(ops, "x", "y", tensor("a"), tensor("b"), tensor("y")), initializer([10, 20]))


@pytest.mark.parametrize("op", ["elsewhere", "made"])
def test_where_the_cpu_runs_some_of_it(
    op: str, device: WatchedDevice, opened: Callable[..., Any]
) -> None:
    """It is kept where one part on the device has all that has to do with it."""
    content = beside(op)
    mine, theirs = opened(content, exclude=["NEG"]), litert(content)
    for reason in of_variables(mine).values():
        assert ("in several parts" in reason) if op == "made" else reason == ""
    alike(mine, theirs, QUIET + 3, [1, 30])
    assert bool(device.writes) == (op == "elsewhere")


def test_compiled_graphs_from_files(
    device: WatchedDevice, opened: Callable[..., Any], tmp_path: Path
) -> None:
    """A second start takes what the first one has compiled, and keeps the variable as well."""
    for _ in range(2):
        mine = opened(serialization_dir=str(tmp_path), model_token="adding")
        assert set(of_variables(mine).values()) == {""}
        alike(mine, litert(ADDING), QUIET + 2)
    assert any(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_does_not_go_on_with_it(device: WatchedDevice, opened: Callable[..., Any]) -> None:
    mine, theirs = opened(), litert(ADDING)
    alike(mine, theirs, QUIET + 2)
    child = os.fork()
    if not child:
        try:
            step(mine, X)
        except StateError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    alike(mine, theirs, 2)
