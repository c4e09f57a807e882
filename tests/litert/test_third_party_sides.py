"""A plugin's backend as the CPU side: chosen by rank, checked, and replaced where it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tflgpu.contract.device import API_VERSION, BackendInfo, DeviceInfo, NodeRun, Probe, Recording
from tflgpu.errors import DeviceError, OptionError, UnsupportedError
from tflgpu.ir.graph import Node
from tflgpu.ir.graph import TensorSpec as GraphTensor
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.base import OpDef
from tflgpu.plugins import registry as plugins
from tflgpu.plugins.hookspecs import hookimpl
from tflgpu.plugins.registry import Registry, registry
from tflgpu.plugins.sources import Plugin
from tflgpu.runtime.reference import ReferenceRecording

from tests.litert.litert_models import (
    LITERT,
    between,
    i64_in_the_middle,
    litert,
    numbers,
    run,
)

X = numbers((1, 5, 7), 3, -9, 9)


class Side:
    """Runs the operators of some names, by their references."""

    takes: frozenset[str] = frozenset({"CAST", "RELU", "MUL", "ADD"})

    def __init__(self) -> None:
        self.info = DeviceInfo("toy", 0, "toy kernels", driver="1.0")
        self.caps = DeviceCaps()
        self.closed = 0

    def supports(self, node: Node, ops: Mapping[str, OpDef]) -> Unsupported | None:
        return None if node.op in self.takes else Unsupported(f"toy has no {node.op}")

    def load_nodes(self, run: NodeRun) -> Recording:
        if any(n.op not in self.takes for n in run.nodes):
            raise DeviceError("not these")
        return ReferenceRecording(run)

    def close(self) -> None:
        self.closed += 1


Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """``install(device, cpu_rank=...)``: a registry with the backend "toy" besides all others."""

    def make(device: Any, cpu_rank: Any = 99) -> None:
        @hookimpl
        def tflgpu_register_backends() -> list[BackendInfo]:
            return [BackendInfo("toy", API_VERSION, rank=-5, cpu_rank=cpu_rank)]

        @hookimpl
        def tflgpu_probe(backend: str) -> Probe | None:
            info = DeviceInfo("toy", 0, "toy kernels", driver="1.0")
            return Probe(True, devices=(info,)) if backend == "toy" else None

        @hookimpl
        def tflgpu_open_device(backend: str, index: int, options: Any) -> Any:
            if backend != "toy":
                return None
            if isinstance(device, Exception):
                raise device
            return device

        target = ModuleType("toys")
        for hook in (tflgpu_register_backends, tflgpu_probe, tflgpu_open_device):
            setattr(target, hook.__name__, hook)
        made = Registry((*registry().plugins, Plugin("toy", "toys", target)))
        monkeypatch.setattr(plugins, "_registry", made)

    return make


def test_the_highest_rank_is_taken_and_closed(install: Install) -> None:
    side = Side()
    install(side)
    (found,), report = run(i64_in_the_middle(), [X])
    np.testing.assert_allclose(found, litert(i64_in_the_middle(), [X])[0], rtol=1e-6)
    assert {r.runs_on for r in report.refusals} == {"toy kernels (1.0)"}
    assert side.closed == 1


def test_a_lower_rank_is_not(install: Install) -> None:
    install(Side(), cpu_rank=5)
    _, report = run(i64_in_the_middle(), [X])
    assert all(r.runs_on.startswith(LITERT) for r in report.refusals)
    _, report = run(i64_in_the_middle(), [X], cpu_backend="toy")
    assert {r.runs_on for r in report.refusals} == {"toy kernels (1.0)"}


def test_one_that_offers_nothing_cannot_be_asked_for(install: Install) -> None:
    install(Side(), cpu_rank=None)
    with pytest.raises(OptionError, match="cpu_backend is one of litert, cpu_ref, not 'toy'"):
        run(i64_in_the_middle(), [X], cpu_backend="toy")


def test_what_it_does_not_take_numpy_runs(install: Install) -> None:
    side = Side()
    side.takes = frozenset({"RELU", "MUL"})
    install(side)
    (found,), report = run(i64_in_the_middle(), [X])
    np.testing.assert_allclose(found, litert(i64_in_the_middle(), [X])[0], rtol=1e-6)
    assert [bool(r.runs_on) for r in report.refusals] == [True, False, False, False, True]


def test_one_that_does_not_open_gives_way(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install(DeviceError("out of toys"))
    with caplog.at_level(logging.WARNING, "tflgpu"):
        _, report = run(i64_in_the_middle(), [X])
    assert all(r.runs_on.startswith(LITERT) for r in report.refusals)
    (said,) = [r.getMessage() for r in caplog.records]
    assert "out of toys" in said
    assert said.endswith("litert runs what is left to the CPU")
    with pytest.raises(DeviceError, match="out of toys"):
        run(i64_in_the_middle(), [X], cpu_backend="toy")


def test_a_rank_that_is_none(install: Install) -> None:
    install(Side(), cpu_rank="first")
    (failure,) = plugins.registry().failures
    assert "cpu_rank is 'first', not a whole number or None" in failure.error


def test_operators_that_nobody_defines_need_infer(install: Install) -> None:
    install(Side())
    with pytest.raises(
        UnsupportedError, match=r"backend toy .*only runs operators that are defined"
    ):
        run(between("MATRIX_DIAG"), [numbers((2, 3, 5))])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "infer answered None, not a spec for each result"),
        ([], "infer answered [], not a spec for each result"),
        (ValueError("hm"), "infer failed on it: ValueError: hm"),
        (Unsupported("too odd"), "too odd"),
    ],
)
def test_what_infer_answers_is_checked(install: Install, answer: Any, why: str) -> None:
    class Inferring(Side):
        def infer(self, node: Node) -> Sequence[GraphTensor] | Unsupported:
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[no-any-return]

    install(Inferring())
    with pytest.raises(UnsupportedError) as raised:
        run(between("MATRIX_DIAG"), [numbers((2, 3, 5))])
    assert why in str(raised.value)
