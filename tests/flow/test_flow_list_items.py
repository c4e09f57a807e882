"""Loops that fill a list, in the operators that converters write for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flow_models import I32, const, loop, model, number, subgraph, tensor, up_to
from tflgpu import GpuDelegate, Interpreter
from tflgpu.flow.list_items import with_items_written
from tflgpu.runtime.session import Session
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import OperatorSpec, SubgraphSpec, TensorSpec

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

JOIN = {"axis": 0}
ROUNDS = 5


def _body(**changed: Any) -> SubgraphSpec:
    """``list[i] = x[i] + 1`` of rows of three, and ``i += 1``; with other numbers where told."""
    told = {"step": 1, "zero": 0, "rest": -1, "all": -1, "outputs": "i2 xs new", **changed}
    tensors = [
        tensor("i", (), I32), tensor("xs", (ROUNDS, 3)), tensor("list", (ROUNDS, 3)),
        number("one", 1), number("step", told["step"]), const("row", [1, 3], I32),
        const("flat", [1], I32), const("rest", [told["rest"]], I32), const("none", [told["zero"]],
        I32),
        const("start", [0, 0], I32), const("every", [told["all"], -1], I32), const("added", 1.0),
        tensor("i2", (), I32), tensor("next", (), I32), tensor("x", (3,)), tensor("y", (3,)),
        tensor("item", (1, 3)), tensor("iv", (1,), I32), tensor("size", (2,), I32),
        TensorSpec("before", (1, 1), shape_signature=(-1, -1)), tensor("nv", (1,), I32),
        tensor("begin", (2,), I32),
        TensorSpec("behind", (1, 3), shape_signature=(-1, 3)), tensor("new", (ROUNDS, 3)),
    ]  # fmt: skip
    ops = [
        ("ADD", "i one", "i2"), ("ADD", "i step", "next"), ("GATHER", "xs i", "x", JOIN),
        ("ADD", "x added", "y"), ("RESHAPE", "y row", "item"), ("RESHAPE", "i flat", "iv"),
        ("CONCATENATION", "iv rest", "size", JOIN), ("SLICE", "list start size", "before"),
        ("RESHAPE", "next flat", "nv"), ("CONCATENATION", "nv none", "begin", JOIN),
        ("SLICE", "list begin every", "behind"),
        ("CONCATENATION", "before item behind", "new", JOIN),
    ]  # fmt: skip
    return subgraph(tensors, ops, "i xs list", told["outputs"], "body")


def _body_with_a_slice() -> SubgraphSpec:
    """The same, and ``xs += x[i]`` by a slice from i to i + 1, behind the operators that go."""
    body = _body()
    tensors = [
        *body.tensors,
        const("ones", [1], I32),
        tensor("taken", (3,)),
        tensor("sums", (ROUNDS, 3)),
    ]
    names = [t.name for t in tensors]

    def at(text: str) -> list[int]:
        return [names.index(n) for n in text.split()]

    more = [
        OperatorSpec("STRIDED_SLICE", {"shrink_axis_mask": 1}, at("xs iv nv ones"), at("taken")),
        OperatorSpec("ADD", {}, at("xs taken"), at("sums")),
    ]
    return SubgraphSpec(
        tensors, [*body.operators, *more], body.inputs, at("i2 sums new"), body.name
    )


def _whole(body: SubgraphSpec, limit: int = ROUNDS) -> bytes:
    xs, filled = (tensor(name, (ROUNDS, 3)) for name in ("xs", "list"))
    main = subgraph(
        [
            xs, number("zero", 0), const("empty", np.zeros((ROUNDS, 3))), tensor("io", (), I32),
            tensor("xo", (ROUNDS, 3)), tensor("made", (ROUNDS, 3)),
        ],
        [("WHILE", "zero xs empty", "io xo made", loop(1, 2))], "xs", "made",
    )  # fmt: skip
    cond = up_to(limit, filled)
    cond = SubgraphSpec(
        [cond.tensors[0], xs, *cond.tensors[2:]], cond.operators, cond.inputs, cond.outputs, "cond"
    )
    return model(main, cond, body)


def _rewritten(body: SubgraphSpec) -> list[str]:
    info = read_model(_whole(body)).subgraphs[2]
    return [o.name for o in with_items_written(info).operators]


def test_a_loop_that_fills_a_list_is_one_run(
    by_numpy: list[GpuDelegate], monkeypatch: pytest.MonkeyPatch
) -> None:
    content, runs, run = _whole(_body()), [], Session.run
    monkeypatch.setattr(Session, "run", lambda self: runs.append(self) or run(self))
    ours = Interpreter(model_content=content, experimental_delegates=by_numpy)
    theirs = litert.Interpreter(model_content=content)
    xs = np.arange(ROUNDS * 3, dtype=np.float32).reshape(ROUNDS, 3)
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, xs)
        interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(5), xs + 1)
    assert len(runs) == 1  # of a block of five rounds


def test_an_item_outside_the_list(require_backend: Callable[[str], object]) -> None:
    """With `strict` it is refused, as by LiteRT's SLICE; otherwise the last item is what came
    last."""
    require_backend("cpu_ref")
    content, xs = _whole(_body(), 7), np.arange(21, dtype=np.float32).reshape(7, 3)

    def run(interpreter: Any) -> Any:
        interpreter.resize_tensor_input(0, xs.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, xs)
        interpreter.invoke()
        return interpreter.get_tensor(5)

    with pytest.raises(RuntimeError, match="SLICE"):
        run(litert.Interpreter(model_content=content))
    for strict in (True, False):
        with GpuDelegate(backend="cpu_ref", strict=strict) as delegate:
            ours = Interpreter(model_content=content, experimental_delegates=[delegate])
            if strict:
                with pytest.raises(RuntimeError, match=r"SLICE: begin .* outside dimension 0"):
                    run(ours)
            else:
                np.testing.assert_array_equal(run(ours), xs[[0, 1, 2, 3, 6]] + 1)


def test_strict_fills_a_list(require_backend: Callable[[str], object]) -> None:
    require_backend("cpu_ref")
    xs = np.arange(ROUNDS * 3, dtype=np.float32).reshape(ROUNDS, 3)
    with GpuDelegate(backend="cpu_ref", strict=True) as delegate:
        ours = Interpreter(model_content=_whole(_body()), experimental_delegates=[delegate])
        ours.allocate_tensors()
        ours.set_tensor(0, xs)
        ours.invoke()
        np.testing.assert_array_equal(ours.get_tensor(5), xs + 1)


def test_what_comes_behind_keeps_its_number(by_numpy: list[GpuDelegate]) -> None:
    content, found = _whole(_body_with_a_slice()), []
    ours = Interpreter(model_content=content, experimental_delegates=by_numpy)
    for interpreter in (ours, litert.Interpreter(model_content=content)):
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, np.arange(ROUNDS * 3, dtype=np.float32).reshape(ROUNDS, 3))
        interpreter.invoke()
        found.append(interpreter.get_tensor(5))
    np.testing.assert_array_equal(*found)


def test_the_two_slices_are_one_update() -> None:
    names = _rewritten(_body())
    assert names.count("DYNAMIC_UPDATE_SLICE") == 1
    assert "SLICE" not in names
    assert len(names) == 11


@pytest.mark.parametrize(
    "changed",
    [
        {"step": 2},  # an item is left out
        {"zero": 1},  # of its columns, all but the first
        {"rest": 2},  # two columns of what is before
        {"all": 1},  # one item of what is behind
        {"outputs": "i2 before new"},  # somebody reads what is before
    ],
    ids=str,
)
def test_what_only_looks_like_it_stays(changed: dict[str, Any]) -> None:
    assert "DYNAMIC_UPDATE_SLICE" not in _rewritten(_body(**changed))
