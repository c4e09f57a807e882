"""Reads the tensors and operators that LiteRT hands to a delegate into plain values.

The context of a running interpreter is read once, while it asks the delegate what it wants. The
values go the same way as those of a file: `build_subgraph`, and `OpDef.parse` with TFLite's names.
Constants are views of LiteRT's memory, which lasts as long as the interpreter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.errors.blame import quoted
from tflgpu.hosts.cdef import (
    AFFINE_QUANTIZATION,
    DYNAMIC,
    MMAP_RO,
    NO_QUANTIZATION,
    OK,
    ffi,
    ints,
)
from tflgpu.hosts.params import element_type, has_no_options, struct_of
from tflgpu.ir.budget import MAX_RANK
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.constants import constant
from tflgpu.tflite.model_file import FieldValue, OperatorInfo, SubgraphInfo, TensorInfo
from tflgpu.tflite.schema import BUILTINS, CUSTOM
from tflgpu.tflite.tensors import with_empty_constants

TAKEN = "another delegate has taken it"
DELEGATE = 51  # BuiltinOperator: a node that stands for what a delegate has taken


@attrs.frozen(eq=False)
class HostGraph:
    """A subgraph of LiteRT's as far as it can be read.

    Attributes:
        tensors: By index.
        operators: By LiteRT's index of the node, in order of execution. Other delegates' nodes are
            among them.
        unreadable: Why an operator cannot be read and stays with LiteRT, by index of the node.
        open_shapes: Tensors whose shape the model leaves open, inputs among them.
    """

    tensors: tuple[TensorInfo, ...]
    operators: Mapping[int, OperatorInfo]
    unreadable: Mapping[int, str]
    open_shapes: frozenset[int]

    def subgraph(
        self,
        nodes: tuple[int, ...],
        outputs: tuple[int, ...] | None = None,
        beside: Collection[int] = (),
    ) -> SubgraphInfo:
        """Some of the nodes as a graph of their own.

        Its inputs are what they read and do not make; variables are not among them. Without
        ``outputs`` these are the tensors that none of them reads. Of the nodes ``beside``, which
        read constants only, those are in it too that make what the others read.
        """
        wanted = {t for n in nodes for t in self.operators[n].inputs}
        first = [n for n in beside if n not in nodes and wanted & {*self.operators[n].outputs}]
        chosen = tuple(self.operators[n] for n in (*first, *nodes))
        made = {t: None for op in chosen for t in op.outputs}
        read = {t: None for op in chosen for t in op.inputs if t >= 0}
        known = {t for t in read if self.tensors[t].is_constant or self.tensors[t].is_variable}
        inputs = tuple(t for t in read if t not in made and t not in known)
        if outputs is None:
            outputs = tuple(t for t in made if t not in read)
        return SubgraphInfo("litert", self.tensors, inputs, outputs, chosen)


def read_context(context: Any) -> HostGraph:
    """Read what ``context``, a `TfLiteContext*` during a delegate's `Prepare`, has.

    Raises:
        ModelError: LiteRT does not answer.
    """
    plan = ffi().new("TfLiteIntArray**")
    if context.GetExecutionPlan(context, plan) != OK:
        raise ModelError("LiteRT gave no execution plan")
    order = ints(plan[0])  # before the next call, which reuses its memory
    problems: dict[int, str] = {}
    tensors = [_tensor(context.tensors[i], i, problems) for i in range(context.tensors_size)]
    operators: dict[int, OperatorInfo] = {}
    unreadable: dict[int, str] = {}
    for index in order:
        operators[index], reason = _operator(context, index)
        op = operators[index]
        touched = [t for t in (*op.inputs, *op.outputs, *op.intermediates) if t >= 0]
        reason = reason or next((problems[t] for t in touched if t in problems), "")
        if reason:
            unreadable[index] = reason
    written = {t for op in operators.values() for t in op.outputs}
    open_shapes = frozenset(
        i
        for i in range(context.tensors_size)
        if -1 in ints(context.tensors[i].dims_signature)
        or context.tensors[i].allocation_type == DYNAMIC
    )
    whole = with_empty_constants(tensors, written)
    return HostGraph(whole, operators, unreadable, open_shapes)


def shape_of(tensor: Any) -> tuple[int, ...]:
    """The shape that a `TfLiteTensor` has now."""
    return ints(tensor.dims)


def _text(pointer: Any) -> str:
    return ffi().string(pointer).decode("utf-8", "replace") if pointer else ""


def _tensor(tensor: Any, index: int, problems: dict[int, str]) -> TensorInfo:
    """One tensor; why no operator can be read that touches it goes into ``problems``."""
    name = _text(tensor.name)
    where = f"tensor {index} ({quoted(name)})"
    shape = shape_of(tensor)
    dtype = element_type(tensor.type)
    if dtype is None:
        problems[index] = f"{where} is of a type (code {tensor.type}) that is not known here"
        return TensorInfo(index, name, (), (), DType.VARIANT)
    if len(shape) > MAX_RANK or any(d < 0 for d in shape):
        problems[index] = f"{where} has shape {list(shape)}, which no tensor can have"
        return TensorInfo(index, name, (), (), dtype)
    signature = ints(tensor.dims_signature) or shape
    data = quantization = None
    try:
        quantization = _quantization(tensor, where)
        if tensor.sparsity:
            problems[index] = f"{where} is sparse, which only LiteRT's kernels read"
        elif tensor.allocation_type == MMAP_RO and tensor.data and not tensor.is_variable:
            content = memoryview(ffi().buffer(tensor.data, tensor.bytes)).toreadonly()
            data = constant(content, dtype, shape, where)
    except ModelError as error:
        problems[index] = str(error)
    return TensorInfo(
        index,
        name,
        shape,
        signature if len(signature) == len(shape) else shape,
        dtype,
        data,
        quantization,
        is_variable=bool(tensor.is_variable),
        has_rank=True,
    )


def _quantization(tensor: Any, where: str) -> Quantization | None:
    kind, params = tensor.quantization.type, tensor.quantization.params
    if kind == NO_QUANTIZATION or not params:
        return None
    if kind != AFFINE_QUANTIZATION:
        raise ModelError(f"{where} is quantized in a way (code {kind}) that is not known here")
    affine = ffi().cast("TfLiteAffineQuantization*", params)
    scale = tuple(ffi().unpack(affine.scale.data, affine.scale.size)) if affine.scale else ()
    if not scale:
        return None
    points = ints(affine.zero_point) or (0,)
    if len(points) == 1:  # LiteRT may keep one where the file has as many as scales
        points *= len(scale)
    if len(points) != len(scale) or not all(np.isfinite(s) and s >= 0 for s in scale):
        raise ModelError(f"{where} has {len(points)} zero points and scales {scale[:4]}")
    axis = affine.quantized_dimension if len(scale) > 1 else 0
    rank = tensor.dims.size if tensor.dims else 0
    if len(scale) > 1 and (not 0 <= axis < rank or tensor.dims.data[axis] != len(scale)):
        raise ModelError(f"{where} has {len(scale)} scales along axis {axis}")
    return Quantization(scale, points, axis)


def _operator(context: Any, index: int) -> tuple[OperatorInfo, str]:
    """One operator, and why it cannot be read; "" where it can."""
    node_at, registration_at = ffi().new("TfLiteNode**"), ffi().new("TfLiteRegistration**")
    if context.GetNodeAndRegistration(context, index, node_at, registration_at) != OK:
        raise ModelError(f"LiteRT does not say what its node {index} is")
    node, registration = node_at[0], registration_at[0]
    code, custom = registration.builtin_code, _text(registration.custom_name)
    is_custom = code == CUSTOM
    name = custom if is_custom else BUILTINS.get(code, f"BUILTIN_{code}")
    reason, fields, options = "", dict[str, FieldValue](), b""
    if code == DELEGATE or node.delegate:
        name, reason = custom or name, TAKEN
    elif is_custom:
        size = node.custom_initial_data_size
        if node.custom_initial_data and size > 0:
            options = bytes(ffi().buffer(node.custom_initial_data, size))
    else:
        fields, reason = read_fields(name, node.builtin_data)
    info = OperatorInfo(
        index,
        name,
        is_custom,
        max(1, registration.version),
        ints(node.inputs),
        ints(node.outputs),
        ints(node.intermediates),
        fields,
        options,
    )
    return info, reason


def read_fields(op: str, builtin_data: Any) -> tuple[dict[str, FieldValue], str]:
    """The options of a builtin operator by the schema's names, and why they cannot be read; ""
    where they can. What the struct does not have (a newer field) is left out."""
    known = struct_of(op)
    if known is None:
        unread = not op.startswith("BUILTIN_") and not has_no_options(op)
        return {}, f"the options of {op} are not read from LiteRT's memory" if unread else ""
    if not builtin_data:
        return {}, "LiteRT has no options for it"
    name, struct = known
    data = ffi().cast(f"{name}*", builtin_data)
    return {field: read(data) for field, read in struct.fields.items()}, ""
