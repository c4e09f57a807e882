"""Graphs that were made by chance: a bucket computes what the graph does at each smaller size."""

from __future__ import annotations

import numpy as np
import pytest
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.bucket import bucket_of, corner

from tests.passes.chance import made
from tests.passes.harness import evaluate, inferred


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers behind the size may be anything
def test_a_bucket_computes_smaller_sizes() -> None:
    ops, taken, refused, finite = builtin_ops(), 0, 0, 0
    for seed in range(400):
        wide = made(seed, 9)
        for size in (8, 3, 7):
            narrow = made(seed, size)
            bucket = bucket_of(wide, narrow, ops)
            if isinstance(bucket, Unsupported):
                refused += 1
                continue
            taken += 1
            inferred(bucket.graph)
            rng = np.random.default_rng(seed)
            data = rng.uniform(0.5, 1.5, narrow.inputs[0].shape).astype(np.float32)
            whole = np.zeros(wide.inputs[0].shape, np.float32)
            whole[corner(data.shape)] = data
            extra = [bucket.contents[v.id] for v in bucket.graph.inputs[1:]]
            (want,) = evaluate(narrow, [data])
            (got,) = evaluate(bucket.graph, [whole, *extra])
            np.testing.assert_allclose(
                got[corner(want.shape)], want, rtol=2e-3, atol=1e-5, err_msg=f"{seed} {size}"
            )
            finite += bool(np.isfinite(want).all())
    assert taken > finite > refused > 50
