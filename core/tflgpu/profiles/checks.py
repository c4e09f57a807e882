"""Rules of other delegates that are more than a number in a table, as functions.

Each takes an operator and gives the reason why it is refused, or "". Sources: LiteRT,
``tflite/tools/versioning/gpu_compatibility.cc`` and
``tflite/delegates/gpu/common/model_builder.cc`` (August 2026).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tflgpu.profiles.file_operator import FileOperator, shaped

_RANK = 4
_TANH = 4  # in ActivationFunctionType


def _two_operands(operator: FileOperator) -> str:
    runtime, constant = len(operator.runtime), len(operator.constants)
    if (runtime, constant) in ((2, 0), (1, 1)):
        return ""
    return (
        f"it has {runtime} operands that are computed and {constant} constant ones; taken are two "
        "computed, or one of each"
    )


def _constant_operand(operator: FileOperator) -> str:
    """A constant beside a computed operand is a scalar, a vector along the channels, or HWC."""
    if len(operator.runtime) != 1 or len(operator.constants) != 1:
        return ""
    shape = operator.constants[0].shape
    leading = next((i for i, size in enumerate(shape) if size != 1), len(shape))
    if len(shape) - leading <= _RANK - 1:
        return ""
    return f"its constant operand ({shaped(operator.constants[0])}) is no scalar, C-vector or HWC"


def _broadcast(operator: FileOperator) -> str:
    """Two computed operands of unequal rank: three ways to spread the smaller one."""
    if len(operator.runtime) != 2 or len(operator.inputs) != 2:
        return ""
    small, large = sorted((t.shape for t in operator.runtime), key=len)
    if len(small) == len(large):
        return ""
    if len(large) == _RANK:
        batch, _, _, channels = large
        if len(small) == 3 and batch == 1:
            return ""
        if len(small) == 2 and small in ((1, 1), (batch, channels)):
            return ""
    return (
        f"its operands have ranks {len(small)} and {len(large)}; taken are 3-D onto 4-D of batch "
        "1, [1,1] onto 4-D, and [b,c] onto [b,h,w,c]"
    )


def _depthwise(operator: FileOperator) -> str:
    source, filters = operator.input(0), operator.input(1)
    result = operator.outputs[0] if operator.outputs else None
    if source is None or filters is None or result is None:
        return "its input or filter is absent"
    for tensor in (source, filters, result):
        if len(tensor.shape) != _RANK:
            return f"{shaped(tensor)} has rank {len(tensor.shape)}; taken is 4"
    if source.shape[0] != result.shape[0]:
        return "its input and output have different batch sizes"
    if filters.shape[3] != result.shape[3]:
        return "the filter's last dimension is not the number of output channels"
    if result.shape[3] != source.shape[3] * operator.number("depth_multiplier"):
        return "the output channels are not the input's times depth_multiplier"
    bias = operator.input(2)
    if bias is not None and int(np.prod(bias.shape)) != result.shape[3]:
        return "the bias is not as long as there are output channels"
    return ""


def _kept_dims(operator: FileOperator) -> str:
    source = operator.input(0)
    if not operator.number("keep_num_dims") or source is None or not operator.outputs:
        return ""
    if len(source.shape) == len(operator.outputs[0].shape):
        return ""
    return "keep_num_dims is on, but input and output have different ranks"


def _alpha(operator: FileOperator) -> str:
    source, alpha = operator.input(0), operator.input(1)
    if source is None or alpha is None or not source.shape:
        return "it has no alpha"
    leading = next((i for i, size in enumerate(alpha.shape) if size != 1), len(alpha.shape))
    stripped = alpha.shape[leading:]
    if int(np.prod(stripped)) == source.shape[-1] and len(stripped) <= 1:
        return ""
    if source.shape[-len(stripped) :] == stripped and len(stripped) == _RANK - 1:
        return ""
    return (
        f"alpha ({shaped(alpha)}) is neither a vector of the channels nor HWC of the input's shape"
    )


def _branches(operator: FileOperator) -> str:
    condition, *branches = operator.inputs[:3]
    if condition is None or len(branches) != 2 or not operator.outputs:
        return "it has no condition and two branches"
    result = operator.outputs[0].shape
    try:
        if np.broadcast_shapes(condition.shape, result) != result:
            return "its condition is larger than its result"
    except ValueError:
        return "its condition cannot be spread over its result"
    for branch in branches:
        if branch is None:
            return "a branch is absent"
        if branch.shape != result and int(np.prod(branch.shape)) != 1:
            return f"a branch ({shaped(branch)}) has neither the result's shape nor one element"
        if len(branch.shape) == 2 and not branch.is_constant:
            return f"a branch of two dimensions ({shaped(branch)}) is not constant"
    return ""


def _last_axis(operator: FileOperator) -> str:
    if not operator.outputs:
        return "it has no output"
    shape, axis = operator.outputs[0].shape, int(operator.number("axis"))
    if axis not in (-1, len(shape) - 1):
        return f"its axis is {axis}; taken is the last"
    if any(size != 1 for size in shape[1:-1]):
        result = shaped(operator.outputs[0])
        return f"of its result ({result}) only the first and the last may be over 1"
    return ""


def _recurrent(operator: FileOperator) -> str:
    """Basic: 3 computed and 2 constant operands, 4 results. Full: 20 or 24 operands, 1 result."""
    activation = int(operator.number("fused_activation_function"))
    if int(operator.number("kernel_type")) == 1:
        if (len(operator.runtime), len(operator.constants), len(operator.outputs)) != (3, 2, 4):
            return "of a basic one, 3 computed and 2 constant operands and 4 results are taken"
        if activation != _TANH:
            return "of a basic one only TANH is taken"
        if operator.number("cell_clip") or operator.number("proj_clip"):
            return "clipping is not taken"
        if operator.outputs[0].shape[-1:] and operator.outputs[0].shape[-1] % 4:
            return "its depth is no multiple of 4"
        return ""
    if len(operator.inputs) not in (20, 24) or len(operator.outputs) != 1:
        return (
            f"{len(operator.inputs)} operands and {len(operator.outputs)} results; taken are 20 or "
            "24, and 1"
        )
    # SIGMOID is taken too, but there is no such activation in the file format.
    return "" if activation == _TANH else "only TANH is taken"


def _warp(operator: FileOperator) -> str:
    source, warp = operator.input(0), operator.input(1)
    if source is None or warp is None:
        return "it takes an image and a warp"
    if len(source.shape) != _RANK or len(warp.shape) != _RANK:
        return "image and warp have rank 4"
    if source.shape[0] != warp.shape[0]:
        return "image and warp have different batch sizes"
    return "" if warp.shape[-1] >= 2 else "the warp has fewer than 2 channels"


#: By the name that a table of rules has for it.
NAMED_CHECKS: Mapping[str, Callable[[FileOperator], str]] = {
    "alpha": _alpha,
    "branches": _branches,
    "broadcast": _broadcast,
    "constant_operand": _constant_operand,
    "depthwise": _depthwise,
    "kept_dims": _kept_dims,
    "last_axis": _last_axis,
    "recurrent": _recurrent,
    "two_operands": _two_operands,
    "warp": _warp,
}
