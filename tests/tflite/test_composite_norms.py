"""Composites of normalization run as one kernel where that gives what LiteRT gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tflgpu.compiler import trial

pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

from composite_models import Body, as_operators, became, by_litert, drawn, here, model


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
