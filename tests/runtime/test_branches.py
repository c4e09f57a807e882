"""Elementwise branches that begin at one value and meet again: part of the store that makes it."""

from __future__ import annotations

import pytest
from tflgpu.compiler import lower
from tflgpu.contract.device import Device
from tflgpu.ir.graph import Value
from tflgpu.language.caps import DeviceCaps

from tests.runtime.test_lower import Net, _run


def swish(net: Net, x: Value) -> Value:
    return net.op("MUL", [x, net.op("LOGISTIC", [x], x.shape)], x.shape)


@pytest.fixture
def net() -> Net:
    return Net()


def ops(net: Net, *outputs: Value, caps: DeviceCaps | None = None) -> list[str]:
    """What each kernel computes."""
    plan = net.plan(*outputs, caps=caps)
    return [d.label.replace("#new ", "") for d in plan.dispatches]


def test_swish_joins_a_convolution(device: Device, net: Net) -> None:
    y = swish(net, net.conv(net.input(1, 3, 5, 6), 7))
    assert ops(net, y) == ["CONV_2D + LOGISTIC + MUL"]
    assert net.plan(y).arena_bytes == 0
    _run(device, net, net.plan(y))


def test_one_after_another_and_longer_branches(device: Device, net: Net) -> None:
    x = swish(net, net.conv(net.input(1, 3, 5, 6), 7))
    skip = net.input(*x.shape)
    long = net.op("TANH", [net.op("SUB", [skip, net.op("EXP", [x], x.shape)], x.shape)], x.shape)
    y = net.op("NEG", [net.op("SUB", [long, x], x.shape)], x.shape)
    assert ops(net, y) == ["CONV_2D + LOGISTIC + MUL + EXP + SUB + TANH + SUB + NEG"]
    _run(device, net, net.plan(y))


def test_two_branches_meet(device: Device, net: Net) -> None:
    """Neither operand of the last node is the value that both begin with."""
    x = net.conv(net.input(1, 3, 5, 6), 7)
    left = net.op("RELU", [x], x.shape)
    right = net.op("NEG", [net.op("EXP", [x], x.shape)], x.shape)
    y = net.op("SUB", [left, right], x.shape)
    assert ops(net, y) == ["CONV_2D + RELU + EXP + NEG + SUB"]
    _run(device, net, net.plan(y))


def test_branches_within_branches(device: Device, net: Net) -> None:
    x = net.conv(net.input(1, 3, 5, 6), 7)
    inner = swish(net, net.op("TANH", [x], x.shape))
    y = net.op("ADD", [inner, x], x.shape)
    assert ops(net, y) == ["CONV_2D + TANH + LOGISTIC + MUL + ADD"]
    _run(device, net, net.plan(y))


@pytest.mark.parametrize("kept", ["output", "reader", "reader of a branch"])
def test_what_others_read_stays(device: Device, kept: str, net: Net) -> None:
    x = net.conv(net.input(1, 3, 5, 6), 7)
    gate = net.op("LOGISTIC", [x], x.shape)
    y = net.op("MUL", [x, gate], x.shape)
    other = {
        "output": lambda: x,
        "reader": lambda: net.op("SOFTMAX", [x], x.shape, beta=1.0),
        "reader of a branch": lambda: net.op("SOFTMAX", [gate], x.shape, beta=1.0),
    }[kept]()
    assert ops(net, y, other)[0] == "CONV_2D"
    _run(device, net, net.plan(y, other))


def test_a_branch_that_grows_stays_apart(device: Device, net: Net) -> None:
    """The gate is broadcast: what meets in the end is larger than what the branches begin with."""
    x = net.conv(net.input(1, 1, 1, 6), 7)
    wide = net.op("ADD", [net.op("EXP", [x], x.shape), net.input(1, 3, 5, 7)], (1, 3, 5, 7))
    y = net.op("MUL", [x, wide], (1, 3, 5, 7))
    assert ops(net, y)[0] == "CONV_2D"
    _run(device, net, net.plan(y))


def test_a_cut_falls_where_no_value_is_needed_behind_it(
    device: Device, monkeypatch: pytest.MonkeyPatch, net: Net
) -> None:
    """A kernel that is too much is cut in front of a branch or behind it, never within."""
    x = net.op("NEG", [net.conv(net.input(1, 3, 5, 6), 7)], (1, 3, 5, 7))
    y = net.op("ABS", [swish(net, swish(net, x))], x.shape)
    whole = "CONV_2D + NEG + LOGISTIC + MUL + LOGISTIC + MUL + ABS"
    assert ops(net, y) == [whole]
    seen = []
    for limit in (1, 500, 1000):
        with monkeypatch.context() as patch:
            patch.setattr(lower, "MAX_KERNEL", limit)
            patch.setattr(lower, "check_limits", lambda *args: None)
            plan = net.plan(y)
        _run(device, net, plan)
        seen.append([d.label.replace("#new ", "") for d in plan.dispatches])
        assert " + ".join(seen[-1]) == whole
    assert seen[0] == whole.split(" + ")
    assert 1 < len(seen[1]) < 7
