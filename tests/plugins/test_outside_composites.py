"""A plugin's op may stand for a composite of a file, as a shipped one does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from flatbuffers import flexbuffers
from outside_ops import outside
from tflgpu.errors import UnsupportedError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import TensorSpec as Spec
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.rule import ElementwiseRule
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Composed,
    Fields,
    FileForm,
    OpDef,
    Operand,
    Reading,
    Sample,
)
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model
from third_party_toys import install, plugin_of


@attrs.frozen
class Times:
    """What it multiplies by."""

    factor: float


def _infer(attributes: Times, operands: Sequence[Operand | None]) -> list[Spec]:
    (x,) = operands
    assert x is not None
    return [x.spec]


def _times(attributes: Times, arrays: Sequence[Array | None]) -> list[Array]:
    (x,) = arrays
    assert x is not None
    return [np.asarray(x * np.float32(attributes.factor))]


def _read(fields: Fields, operands: Sequence[Operand | None]) -> list[Reading]:
    if "by" not in fields.values:
        raise UnsupportedError("it does not say by what")
    factor = fields.number("by")
    return [Reading(Times(factor + 1)), Reading(Times(factor))]  # the first is never meant


def _draw(rng: np.random.Generator, operands: Sequence[Operand | None]) -> list[Array | None]:
    """What has a logarithm."""
    (x,) = operands
    assert x is not None
    return [rng.uniform(0.5, 3, x.shape).astype(np.float32)]


def op(read: Callable[..., Any] = _read) -> OpDef:
    return OpDef(
        "ToyTimes", lambda f: Times(f.number("by")), _infer, _times,
        lambda: [Sample("odd", {"by": 3}, (Arg((3, 5)),))], accuracy=Accuracy.ROUNDED,
        is_custom=True, elementwise=True,
        file=FileForm(composed=(Composed(("toy.times",), read,
        frozenset({"by"}), _draw),))
    )  # fmt: skip


def _expr(k: Builder, attributes: Times, operands: Sequence[Expr]) -> Expr:
    return operands[0] * attributes.factor


def plugin(read: Callable[..., Any] = _read) -> Any:
    return plugin_of(
        register_ops=lambda: [op(read)],
        register_kernels=lambda backend: [ElementwiseRule("ToyTimes", _expr)],
    )


def model(attributes: dict[str, Any], factor: float = 3.0) -> bytes:
    """x times ``factor``, by a logarithm and its inverse, so that no other pass makes one of it."""
    shape = (3, 5)
    body = SubgraphSpec(
        [TensorSpec("x", shape), TensorSpec("f", (), data=float(np.log(factor))), TensorSpec("l",
        shape),
         TensorSpec("s", shape), TensorSpec("y", shape)],
        [OperatorSpec("LOG", {}, [0], [2]), OperatorSpec("ADD", {}, [2, 1], [3]),
         OperatorSpec("EXP", {}, [3], [4])], [0], [4],
    )  # fmt: skip
    fields = {
        "name": "toy.times", "decomposition_subgraph_index": 1,
        "composite_attributes": tuple(flexbuffers.Dumps(attributes)),
    }  # fmt: skip
    tensors = [TensorSpec("x", shape), TensorSpec("a", shape), TensorSpec("y", shape)]
    whole = OperatorSpec("STABLEHLO_COMPOSITE", fields, [1], [2])
    return write_model(
        ModelSpec(tensors, [OperatorSpec("ABS", {}, [0], [1]), whole], [0], [2], subgraphs=[body])
    )


def run(content: bytes) -> tuple[Array, Any]:
    x = np.random.default_rng(1).uniform(-2, 2, (3, 5)).astype(np.float32)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as interpreter,
    ):
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, x)
        interpreter.invoke()
        np.testing.assert_allclose(interpreter.get_tensor(2), 3 * np.abs(x), rtol=1e-5)
        return x, interpreter.report


def test_it_takes_the_operators_place(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, plugin())
    _, report = run(model({"by": 3}))
    (found,) = report.composites
    assert (found.name, found.operators, found.op, found.reason) == (
        "toy.times",
        (1, 2, 3),
        "ToyTimes",
        "",
    )
    assert report.dispatches == 1


def _raises(fields: Fields, operands: Sequence[Operand | None]) -> list[Reading]:
    raise RuntimeError("no idea")


@pytest.mark.parametrize(
    ("read", "attributes", "why"),
    [
        (_read, {"by": 4}, ("ToyTimes of plugin toy-plugin (from toy-package): what it is made of "
                           "computes something else")),
        (_read, {"by": 3, "to": 4}, ("ToyTimes of plugin toy-plugin (from toy-package): its "
                                    "attribute 'to' is not understood")),
        (_read, {}, "ToyTimes of plugin toy-plugin (from toy-package): it does not say by what"),
        (_raises, {"by": 3}, "ToyTimes of plugin toy-plugin (from toy-package): no idea"),
        (lambda f, o: [1], {"by": 3}, "ToyTimes of plugin toy-plugin (from toy-package): "),
        (lambda f, o: None, {"by": 3}, "ToyTimes of plugin toy-plugin (from toy-package): "),
        (lambda f, o: [Reading(Times(3), (4,))], {"by": 3}, ("ToyTimes of plugin toy-plugin (from "
                                                            "toy-package): ")),
    ],
)  # fmt: skip
def test_what_it_does_not_know_runs_as_operators(
    monkeypatch: pytest.MonkeyPatch, read: Any, attributes: dict[str, Any], why: str
) -> None:
    install(monkeypatch, plugin(read))
    _, report = run(model(attributes))
    (found,) = report.composites
    assert found.op == ""
    assert found.reason.startswith(why)


def test_without_the_plugin_it_runs_as_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, outside())
    _, report = run(model({"by": 3}))
    assert report.composites[0].reason.startswith("no op is known that computes 'toy.times' as one")
