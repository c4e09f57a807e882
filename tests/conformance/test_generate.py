"""Generated samples: they fit their ops, and print as source that makes them again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.conformance.merge import merge_plans
from tflgpu.conformance.plans import biased, chain, chain_expected
from tflgpu.conformance.samples import generate, materialize, source_of
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.ops.base import Arg, OpDef, Sample
from tflgpu.ops.registry import builtin_ops
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import registry


class RandomDraw:
    """Draws without Hypothesis."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high, endpoint=True))

    def choice(self, options: Sequence[Any]) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def size(self, most: int = 17) -> int:
        return self.choice([n for n in (1, 3, 4, 5, 8, 13, 17) if n <= most])


@pytest.mark.parametrize("op", builtin_ops().values(), ids=lambda op: op.name)
def test_generated_samples_fit(op: OpDef) -> None:
    made = [generate(op, RandomDraw(seed)) for seed in range(8)]
    for sample in made:
        case = materialize(op, sample)
        assert len(case.expected) == len(case.node.outputs)
    if op.generate is not None:
        assert len({str([a and a.shape for a in s.args]) for s in made}) > 3


@pytest.mark.parametrize("op", builtin_ops().values(), ids=lambda op: op.name)
def test_samples_print_as_source(op: OpDef) -> None:
    names = {"Sample": Sample, "Arg": Arg, "DType": DType, "Quantization": Quantization,
             "array": np.array, "nan": float("nan")}  # fmt: skip
    for module in [m for name, m in sys.modules.items() if name.startswith("tflgpu.ops.")]:
        names |= {name: kind for name, kind in vars(module).items() if isinstance(kind, type)}
    for sample in op.samples():
        again = eval(source_of(sample), names)
        assert [a and (a.shape, a.dtype) for a in again.args] == [
            a and (a.shape, a.dtype) for a in sample.args
        ]
        for a, b in zip(again.args, sample.args, strict=True):
            if a is not None and a.data is not None:
                assert b is not None
                np.testing.assert_array_equal(a.data, b.data)
        assert again.accumulates == sample.accumulates
        assert again.version == sample.version


def test_merged_plans_do_what_each_does() -> None:
    device = registry().open_device("cpu_ref", 1, DelegateOptions())
    assert isinstance(device, Device)
    plans = [chain(5, 64), attrs.evolve(biased(7), alignment=64), chain(33, 64)]
    recording = device.load(merge_plans(plans), guard_bands=True)
    data = [np.arange(n, dtype=np.float32) for n in (5, 7, 33)]
    for target, array in zip(recording.inputs, data, strict=True):
        target[...] = array
    recording.run()
    wanted = [chain_expected(data[0]), data[1] * 2, chain_expected(data[2])]
    for got, want in zip(recording.outputs, wanted, strict=True):
        assert np.array_equal(got, want)
    recording.close()
    device.close()
