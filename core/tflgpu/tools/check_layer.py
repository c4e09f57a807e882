"""The first operator at which a device's outputs leave the reference's, by bisection.

    operators 0 to k on the device, the others on the CPU:   k = 0 .. n - 1
    the outputs are right for k < first, and wrong from k = first on

Each try runs the model as it is otherwise compiled, with what is merged into what, so that a fault
of merged kernels is found too. It takes as many tries as the number of operators has bits.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from tflgpu.compiler.partition_by import PartitionBy
from tflgpu.errors import TflgpuError
from tflgpu.options import DelegateOptions
from tflgpu.tflite.model_file import ModelFile


@attrs.frozen
class DivergingLayer:
    """The operator from which on outputs differ.

    Attributes:
        index, op: In the file.
        tensors: Names of its results.
        alone: The error of the outputs when only this operator runs on the device, as a share;
            None where that could not be run.
        without: When all but this operator do.
        why: A sentence.
    """

    index: int
    op: str
    tensors: tuple[str, ...]
    alone: float | None
    without: float | None
    why: str


def first_diverging(
    file: ModelFile,
    options: DelegateOptions,
    wrong: Callable[[DelegateOptions], tuple[bool, float]],
) -> DivergingLayer | None:
    """The operator, or None where the operators one after another are right.

    Args:
        file: The model, which is wrong with these options.
        options: Of the delegate.
        wrong: Runs the model with other options; whether its outputs are wrong, and by which share.

    Raises:
        TflgpuError: a try could not be run.
    """
    options = options.changed(partitioning=PartitionBy.ALL, allow_fallback=True)
    operators = file.main.operators
    low, high = -1, len(operators) - 1  # right at low, wrong at high
    if not operators or not wrong(_up_to(options, high))[0]:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if wrong(_up_to(options, middle))[0]:
            high = middle
        else:
            low = middle
    found = operators[high]
    alone = _share(wrong, options.changed(include=(high,)))
    without = _share(wrong, options.changed(exclude=(*options.exclude, high)))
    names = tuple(file.main.tensors[t].name for t in found.outputs)
    shares = [None if tried is None else tried[1] for tried in (alone, without)]
    return DivergingLayer(high, found.name, names, shares[0], shares[1], _why(alone, without))


def _up_to(options: DelegateOptions, last: int) -> DelegateOptions:
    return options.changed(last_delegate_node_index=last)


_Try = tuple[bool, float] | None


def _share(
    wrong: Callable[[DelegateOptions], tuple[bool, float]], options: DelegateOptions
) -> _Try:
    try:
        return wrong(options)
    except TflgpuError:
        return None


def _why(alone: _Try, without: _Try) -> str:
    if alone is not None and alone[0]:
        return "the outputs are wrong with this operator alone on the device"
    if without is not None and not without[0]:
        return "the outputs are right when this operator alone runs on the CPU"
    return "errors of several operators add up, and here they pass the tolerance"
