"""A plugin that edits a node when it is asked about it: found, named, and taken back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tflgpu.errors.blame import Failed
from tflgpu.ir.dtypes import DType
from tflgpu.ir.edit_guard import ask
from tflgpu.ir.graph import Node, Value
from tflgpu.lowering.rule import GroupRule, KernelRule
from third_party_toys import WANTED, PlanToy, hooks, install, run


def _node() -> Node:
    x, y = (Value(i, f"t{i}", (2, 3), DType.F32) for i in range(2))
    return Node("RELU", None, [x], [y])


def _to_neg(node: Node, *rest: Any) -> None:
    node.op = "NEG"


def _no_inputs(node: Node, *rest: Any) -> None:
    node.inputs.clear()


def _texts(node: Node, *rest: Any) -> None:
    node.inputs = ["x"]  # type: ignore[list-item]


def _flat(node: Node, *rest: Any) -> None:
    node.outputs[0].shape = (6,)


def _constant(node: Node, *rest: Any) -> None:
    node.input(0).data = np.zeros((2, 3), np.float32)


EDITS = (_to_neg, _no_inputs, _texts, _flat, _constant)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_edit_is_taken_back(edit: Callable[..., None]) -> None:
    node = _node()
    x, y = node.inputs[0], node.outputs[0]
    answer = ask(edit, node, node)
    assert isinstance(answer, Failed)
    assert "which only graph passes may" in str(answer)
    assert (node.op, node.inputs, node.outputs) == ("RELU", [x], [y])
    assert y.shape == (2, 3)
    assert node.input(0).data is None


def test_an_answer_is_handed_on() -> None:
    assert ask(lambda node: "no", _node(), _node()) == "no"


def _match(node: Node, maker: Any, site: Any) -> None:
    _to_neg(maker(node.input(0)))


PLUGINS: dict[str, Callable[[], Any]] = {
    "accepts": lambda: hooks(
        PlanToy,
        register_kernels=lambda backend: [
            KernelRule("TANH", "toy", lambda low: None, _to_neg, rank=1000)
        ],
    ),
    "match": lambda: hooks(
        PlanToy,
        register_kernels=lambda backend: [
            GroupRule("TANH", "toy", _match, lambda low: None, rank=1000)
        ],
    ),
    "build": lambda: hooks(
        PlanToy,
        register_kernels=lambda backend: [
            KernelRule("TANH", "toy", lambda low: _to_neg(low.node), rank=1000)
        ],
    ),
    "veto": lambda: hooks(PlanToy, node_support=lambda backend, node, site: _to_neg(node)),
}


@pytest.mark.parametrize("kind", PLUGINS)
def test_the_model_is_computed_all_the_same(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, PLUGINS[kind]())
    with caplog.at_level(logging.WARNING, "tflgpu"):
        y, report = run(enable_serialization=False)
    np.testing.assert_allclose(y, WANTED, rtol=1e-6)
    if kind == "veto":
        said = [refusal.reason for refusal in report.refusals]
    else:
        said = [record.getMessage() for record in caplog.records]
    assert any("toy-plugin" in text and "it edited" in text for text in said), said
