"""What ops say of axes that change in size, held against their references."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs
import numpy as np
import pytest
from tflgpu.conformance.samples import materialize
from tflgpu.ops.base import OpDef, Sample
from tflgpu.ops.positions import Along, Positions, Rule, broadcast, of_rows
from tflgpu.ops.registry import builtin_ops

from tests.ops.position_checks import smaller

OPS = builtin_ops()
SAID = [op for op in OPS.values() if op.positions is not None or op.elementwise]


def agreeing(op: OpDef, sample: Sample) -> Iterator[bool]:
    """Whether a bucket gives what the op does, at each size that the sample shows."""
    case = materialize(op, sample)
    arrays = [None if v is None else case.arrays[v.id] if v.data is None else v.data
              for v in case.node.inputs]  # fmt: skip
    for got, want in smaller(op, case.node, arrays):
        exact = want.dtype.kind in "iub"
        yield got.shape == want.shape and bool(
            np.array_equal(got, want)
            if exact
            else np.allclose(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)
        )


@pytest.mark.parametrize("op", SAID, ids=lambda op: op.name)
def test_what_is_said_is_what_the_reference_does(op: OpDef) -> None:
    for sample in op.samples():
        assert all(agreeing(op, sample)), sample.id


def test_most_ops_that_say_something_are_shown() -> None:
    shown = {op.name for op in SAID if any(any(agreeing(op, s)) for s in op.samples())}
    said = {op.name for op in SAID if op.positions is not None}
    assert said - shown == {"CONV_3D", "DEPTH_TO_SPACE"}  # of one item, along which they say it


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("SOFTMAX", of_rows(0.0)), ("SOFTMAX", broadcast), ("LOG_SOFTMAX", of_rows(-1.0)),
        ("L2_NORMALIZATION", broadcast), ("REVERSE_V2", broadcast),
        ("SUM", lambda node, cut: Positions([[Along()] * 4, [None]])),
        ("MEAN", lambda node, cut: Positions([[Along(fill=0)] * 4, [None]])),
        ("BATCH_MATMUL", lambda node, cut: Positions([[Along(0), Along(1), Along()]] * 2)),
        ("ARG_MAX", lambda node, cut: Positions([[Along(fill=9)] * 4, [None]])),
        ("CUMSUM", lambda node, cut: Positions([[Along(i) for i in range(4)], []])),
    ],
)  # fmt: skip
def test_what_is_said_of_positions_by_mistake_is_found(name: str, rule: Rule) -> None:
    op = attrs.evolve(OPS[name], positions=rule)
    assert not all(itertools.chain(*(agreeing(op, sample) for sample in op.samples())))
