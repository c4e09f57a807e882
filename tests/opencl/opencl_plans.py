"""Small plans made by hand, which the conformance suite ships."""

from __future__ import annotations

from tflgpu.conformance.plans import (
    add,
    affine,
    biased,
    chain,
    chain_expected,
    dispatch,
    io,
    plan,
    stray,
)

__all__ = [
    "add", "affine", "biased", "chain", "chain_expected", "dispatch", "io", "plan", "stray",
]  # fmt: skip
