"""What one mutant is: a file, and what is done with it. And what came of that, on either side."""

from __future__ import annotations

import zlib
from typing import Any

import attrs
import numpy as np
from tflgpu.ir.dtypes import Array

#: How the inputs of a run are drawn.
KINDS = ("usual", "nan", "inf", "huge", "subnormal", "zero", "wide")


@attrs.frozen(kw_only=True)
class Script:
    """What is done with a model once it is read.

    Attributes:
        runs: one for each invoke: how its inputs are drawn.
        seed: of the inputs.
        values: contents of inputs by tensor index, where they are not drawn at random (what was a
            constant of the model before it became an input).
        resize: new shapes of inputs by tensor index.
        resize_after: whether they are resized only after the first run, which takes place at the
            shapes of the file.
        delegate: whether a delegate is given at all.
        allow_fallback: as in the options of the delegate.
        precision: as in the options of the delegate.
    """

    runs: tuple[str, ...] = ("usual",)
    seed: int = 0
    values: dict[int, Array] = attrs.field(factory=dict, eq=False)
    resize: dict[int, tuple[int, ...]] = attrs.field(factory=dict)
    resize_after: bool = False
    delegate: bool = True
    allow_fallback: bool = True
    precision: str = "f32"


@attrs.frozen(kw_only=True)
class Outcome:
    """What came of a case on one side.

    Attributes:
        state: "ok", "refused" (a TflgpuError; LiteRT: any exception of its own), "raw" (another
            exception of ours), "crash", "hang", "memory", or "skipped" (accepted so far, but too
            large to be run).
        stage: where it ended: "read", "resize", "allocate", "set", "invoke", "get" or "done".
        error: type of the exception, or the signal.
        message: what it says; of a crash, the end of what was written to stderr.
        outputs: for each finished run, the outputs.
        refusals: operators that stayed on the CPU, with reasons (ours only).
        seconds: how long it took.
    """

    state: str
    stage: str = "done"
    error: str = ""
    message: str = ""
    outputs: list[list[Array]] = attrs.field(factory=list)
    refusals: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def accepted(self) -> bool:
        """Whether the model was run to the end."""
        return self.state == "ok"


def draw(
    script: Script,
    run: int,
    position: int,
    index: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
) -> Array:
    """The contents of the input at ``position``: the same on either side."""
    given = script.values.get(index)
    if given is not None and given.shape == shape and given.dtype == dtype:
        return given
    rng = np.random.default_rng([script.seed, run, position, zlib.crc32(str(dtype).encode())])
    kind = script.runs[run]
    if given is not None and given.size and given.dtype == dtype:
        # What was a constant's value, repeated or cut to the shape that the input has now.
        return np.resize(given, shape)
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        if kind in ("huge", "inf", "nan"):
            return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        low, high = (info.min, info.max) if dtype.itemsize == 1 else (0, 4)
        return rng.integers(low, high, shape, dtype, endpoint=True)
    if dtype.kind == "f":
        return _floats(rng, kind, shape).astype(dtype)
    if dtype.kind == "c":
        return rng.uniform(-1, 1, shape).astype(dtype)
    return np.zeros(shape, dtype)


def _floats(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    usual = rng.uniform(-2, 2, shape)
    some = rng.random(shape) < (1.0 if rng.random() < 0.3 else 0.2)
    special = {
        "nan": np.full(shape, np.nan),
        "inf": np.copysign(np.inf, usual),
        "huge": usual * 1e38,
        "subnormal": usual * 1e-39,
        "zero": np.copysign(0.0, usual),
        "wide": usual * 10.0 ** rng.uniform(-6, 6, shape),
    }
    return np.where(some, special[kind], usual) if kind in special else usual
