"""Random samples of an op: its own generator's, or its samples with other sizes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.conformance.samples import materialize
from tflgpu.errors import TflgpuError
from tflgpu.ops.base import Arg, Draw, OpDef, Sample

_ELEMENTS = 1 << 14  # of a drawn operand, so that the kernel interpreter stays quick
_ATTEMPTS = 8


def generate(op: OpDef, draw: Draw) -> Sample:
    """A sample that the op takes."""
    own = op.generate
    make: Callable[[Draw], Sample] = own or (lambda d: resized(op, d))
    for _ in range(_ATTEMPTS if own is None else 1):
        sample = attrs.evolve(make(draw), id="generated")
        if own is not None or _fits(op, sample):
            return sample
    return attrs.evolve(op.samples()[0], id="generated")


def _fits(op: OpDef, sample: Sample) -> bool:
    """Whether the op takes a sample whose sizes were changed without knowing what they mean."""
    try:
        materialize(op, sample)
    except (TflgpuError, ValueError, IndexError):
        return False
    return True


def resized(op: OpDef, draw: Draw) -> Sample:
    """One of the op's samples with other dimensions: equal sizes stay equal, so that operands
    that fit together still do."""
    sample = draw.choice(op.samples())
    sizes = sorted({d for a in sample.args if a is not None and a.data is None for d in a.shape})
    # Any subset: some sizes are tied to an option or to a constant operand.
    chosen = [d for d in sizes if d > 1 and draw.choice((True, False))]
    other = {d: draw.size() for d in chosen}
    args = tuple(a if a is None or a.data is not None else _with(a, other) for a in sample.args)
    if any(a is not None and np.prod(a.shape) > _ELEMENTS for a in args):
        return sample
    return attrs.evolve(sample, args=args)


def _with(arg: Arg, other: dict[int, int]) -> Arg:
    return attrs.evolve(arg, shape=tuple(other.get(d, d) for d in arg.shape))


# Samples as Python source


def source_of(sample: Sample) -> str:
    """A sample as an expression to paste into an op's samples."""
    parts = [repr(sample.id), _literal(dict(sample.fields)), _tuple(map(_arg, sample.args))]
    for name, default in (("version", 1), ("accumulates", 1), ("custom_options", b"")):
        value = getattr(sample, name)
        if value != default:
            parts.append(f"{name}={value!r}")
    return f"Sample({', '.join(parts)})"


def _arg(arg: Arg | None) -> str:
    if arg is None:
        return "None"
    if arg.data is not None:
        return f"Arg.of({_literal(arg.data.tolist())}, DType.{arg.dtype.name})"
    parts = [repr(arg.shape), f"DType.{arg.dtype.name}", repr(arg.low), repr(arg.high)]
    parts += [f"{name}=True" for name in ("const", "variable") if getattr(arg, name)]
    return f"Arg({', '.join(parts)})"


def _tuple(parts: Any) -> str:
    listed: Sequence[str] = list(parts)
    return f"({', '.join(listed)}{',' if len(listed) == 1 else ''})"


def _literal(value: Any) -> str:
    if type(value) in (bool, int, str):  # most are elements of constants
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if attrs.has(type(value)):
        fields = (getattr(value, field.name) for field in attrs.fields(type(value)))
        return f"{type(value).__name__}({', '.join(map(_literal, fields))})"
    if isinstance(value, float) and not np.isfinite(value):
        return f"float({str(value)!r})"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(_literal, value))
        return f"[{inner}]" if isinstance(value, list) else _tuple(map(_literal, value))
    return repr(value)
