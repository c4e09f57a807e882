"""Calls a plugin's op so that its errors and wrong results name the plugin."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs
import numpy as np

from tflgpu.errors import ModelError, PluginError, UnsupportedError
from tflgpu.errors.blame import Refused, shown
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.base import Arrays, Draw, Fields, OpDef, Operands, Sample
from tflgpu.ops.foreign_facets import check_activation, checked_groups, outcome

_T = TypeVar("_T")


def checked_op(op: OpDef, owner: str) -> OpDef:
    """The same op, of which nothing is believed.

    What its functions raise, but for the errors that `OpDef` allows them, and results that
    break its contract are a `PluginError` that names ``owner``, the op and the function.
    """

    def guarded(name: str, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except Exception as error:
            if name in ("parse", "infer") and isinstance(error, (ModelError, UnsupportedError)):
                raise
            raise PluginError(f"plugin {owner}: op {op.name}: {name} {outcome(error)}") from error

    def parse(fields: Fields) -> Any:
        return guarded("parse", lambda: check_activation(op, op.parse(fields)))

    def infer(attributes: Any, operands: Operands) -> list[TensorSpec]:
        return guarded("infer", lambda: _specs(op.infer(attributes, operands)))

    def reference(attributes: Any, arrays: Arrays) -> list[Array]:
        # What is written into cannot be told from what was there, so it is forbidden.
        given = [None if a is None else _read_only(a) for a in arrays]
        made: list[Array] = guarded("reference", lambda: _results(op.reference(attributes, given)))
        if op.contents.shape_only:
            others = [None if a is None else other_contents(a) for a in arrays]
            guarded("reference", lambda: _insist(made, _results(op.reference(attributes, others))))
        return made

    def samples() -> Sequence[Sample]:
        return guarded("samples", lambda: _samples(op.samples()))

    def generate(draw: Draw) -> Sample:
        assert op.generate is not None
        make = op.generate
        return guarded("generate", lambda: _samples([make(draw)])[0])

    return attrs.evolve(
        op,
        parse=parse,
        infer=infer,
        reference=reference,
        samples=samples,
        generate=None if op.generate is None else generate,
        owner=owner,
        **checked_groups(op, owner, guarded),
    )


def _read_only(array: Array) -> Array:
    view: Array = array.view()
    view.flags.writeable = False
    return view


def other_contents(array: Array) -> Array:
    """An array of the same shape and type whose contents differ from ``array``'s: not the
    same everywhere, and in next to no memory."""
    last = array.shape[-1] if array.shape else 1
    if array.dtype.kind == "O":
        row = np.array([b"%d" % i for i in range(last)], object)
    elif array.dtype.kind == "b":
        row = np.arange(last) % 2 == 0
    else:
        row = (np.arange(last) % 5 + 1).astype(array.dtype)
    if array.size and (np.broadcast_to(row, array.shape or (1,)) == array).all():
        row = row[::-1] if len(set(row.tolist())) > 1 else np.zeros_like(row)
    return _read_only(np.broadcast_to(row, array.shape or (1,)).reshape(array.shape))


def _insist(made: Sequence[Array], again: Sequence[Array]) -> None:
    """That results on other operands are the same ones."""
    if [a.tobytes() for a in made] != [a.tobytes() for a in again]:
        raise Refused(
            "other results where its operands hold something else, and the op says that it is "
            "shape_only: leave that out"
        )


def _specs(found: object) -> list[TensorSpec]:
    if not isinstance(found, (list, tuple)):
        raise Refused(f"{shown(found)}, not a list of TensorSpec")
    return [_spec(spec) for spec in found]


def _spec(spec: object) -> TensorSpec:
    if not isinstance(spec, TensorSpec) or not isinstance(spec.dtype, DType):
        raise Refused(f"{shown(spec)} for an output, not a TensorSpec")
    try:
        shape = tuple(operator.index(d) for d in spec.shape)
    except TypeError:
        raise Refused(f"shape {shown(spec.shape)}, which is no tuple of whole numbers") from None
    if any(d < 0 for d in shape):
        raise Refused(f"shape {shape}, which has a negative size")
    return TensorSpec(shape, spec.dtype)


def _results(found: object) -> list[Array]:
    if not isinstance(found, (list, tuple)):
        raise Refused(f"{type(found).__name__}, not a list of arrays")
    for i, array in enumerate(found):
        if not isinstance(array, (np.ndarray, np.generic)):
            raise Refused(f"{type(array).__name__} for output {i}, not an array")
    # Copies, since the op may have them still and write to them for its next node.
    return [np.array(array) for array in found]


def _samples(found: object) -> Sequence[Sample]:
    if not isinstance(found, (list, tuple)):
        raise Refused(f"{shown(found)}, not a list of Sample")
    for sample in found:
        if not isinstance(sample, Sample):
            raise Refused(f"{shown(sample)} for a sample, not a Sample")
    return found


def wrong_results(op: OpDef, results: Sequence[Array], wanted: Sequence[TensorSpec]) -> str | None:
    """What is wrong with what a reference gave, by what shape inference promised; None where it
    is as promised. Names the plugin where one brought the op."""
    problem = None
    if len(results) != len(wanted):
        problem = f"{len(results)} arrays, not {len(wanted)}: results, and then state tensors"
    else:
        for i, (array, spec) in enumerate(zip(results, wanted, strict=True)):
            if array.shape != spec.shape or array.dtype != spec.dtype.held_as:
                problem = f"{array.dtype}{list(array.shape)} for result {i}, not {spec}"
                break
    if problem is None:
        return None
    by = f"plugin {op.owner}: " if op.owner else ""
    return f"{by}the reference of {op.name} gave {problem}"
