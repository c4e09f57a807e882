"""Nodes of a graph as a model of their own, for a runtime that takes `.tflite` files.

No op has code that writes its attributes back into options. The file's options are used where
`OpDef.parse` still makes the node's attributes of them; else options are guessed from attributes
that have a field's name, and used under the same condition.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.errors.blame import Failed, attempt, clipped
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.ir.graph import FileOptions, Node, Value
from tflgpu.ir.stored_reals import BlockScales, StoredReals
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import Fields, OpDef
from tflgpu.ops.quantize_and_dequantize import OP as SIMULATOR
from tflgpu.ops.quantize_and_dequantize import QuantizeAndDequantize
from tflgpu.ops.quantized import is_divisor
from tflgpu.ops.round_to_bf16 import OP as ROUNDING
from tflgpu.ops.unknown import ForeignOp, unknown_reason
from tflgpu.tflite.bodies import subgraphs_of
from tflgpu.tflite.model_file import Blockwise, SubgraphInfo
from tflgpu.tflite.schema import BUILTIN_CODES, default_fields, options_of
from tflgpu.tflite.spec import (
    ModelSpec,
    OperatorSpec,
    PackedOptions,
    SubgraphSpec,
    TensorSpec,
    subgraph_spec,
)
from tflgpu.tflite.tensor_fields import tensor_fields
from tflgpu.tflite.write import write_model

#: Tensors by which a subgraph has a state that outlasts its run.
_HANDLES = frozenset({DType.RESOURCE, DType.VARIANT})


class Bodies:
    """Subgraphs of a new model, from number 1 on, by what they were in the old one."""

    def __init__(self) -> None:
        self.specs: list[SubgraphSpec] = []
        self._places: dict[int, int] = {}

    def take(
        self, fields: Mapping[str, Any], model: Sequence[SubgraphInfo], inside: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        """Options whose subgraphs are taken along, with the numbers that these have now.

        Args:
            fields: An operator's options.
            model: The old model's subgraphs.
            inside: Those that the operator is in.

        Raises:
            UnsupportedError: one of them runs itself, has a state, or cannot be written again.
        """
        told = dict(fields)
        for name, numbers in subgraphs_of(fields).items():
            places = tuple(self._place(n, model, inside) for n in numbers)
            told[name] = places if isinstance(fields[name], tuple) else places[0]
        return told

    def _place(self, number: int, model: Sequence[SubgraphInfo], inside: tuple[int, ...]) -> int:
        if number in inside:
            raise UnsupportedError(f"subgraph {number} runs itself")
        if number not in self._places:
            spec = self._spec(number, model, (*inside, number))
            self.specs.append(spec)
            self._places[number] = len(self.specs)
        return self._places[number]

    def _spec(
        self, number: int, model: Sequence[SubgraphInfo], inside: tuple[int, ...]
    ) -> SubgraphSpec:
        info = model[number]
        for tensor in info.tensors:
            if tensor.is_variable or tensor.dtype in _HANDLES:
                raise UnsupportedError(f"tensor {tensor.index} of subgraph {number} is a state")
        for operator in info.operators:
            if operator.gap or operator.intermediates:
                raise UnsupportedError(
                    f"operator {operator.index} ({clipped(operator.name)}) of subgraph {number} "
                    f"cannot be written again: {operator.gap or 'it has intermediate tensors'}"
                )
        try:
            spec = subgraph_spec(info)
        except ModelError as error:
            raise UnsupportedError(str(error)) from error
        operators: list[OperatorSpec] = [
            attrs.evolve(o, fields=self.take(o.fields, model, inside)) for o in spec.operators
        ]
        return attrs.evolve(spec, operators=operators)


_STEPS = 1 << 16
_F32_MAX = float(np.finfo(np.float32).max)
_ACTIVATION = "fused_activation_function"


@attrs.frozen
class OperatorOptions:
    """An operator's options as a file has them."""

    fields: Mapping[str, Any]
    custom_options: bytes = b""
    packed: PackedOptions | None = None


@attrs.frozen(eq=False)
class SmallModel:
    """Nodes, written.

    Attributes:
        content: The bytes of a `.tflite` file. Its inputs are those of the nodes, then nothing.
        tensors: Where each value is in it, by the value's id.
        owners: The node that each of its operators stands for.
    """

    content: bytes
    tensors: Mapping[int, int]
    owners: tuple[Node, ...]


#: Options that the schema known here has no words for, by somebody who knows a newer one; None
#: where they do not either.
Repack = Callable[[FileOptions], PackedOptions | None]


def options_for(
    node: Node, ops: Mapping[str, OpDef], repack: Repack | None = None
) -> OperatorOptions | Unsupported:
    """The options with which a file says what a node is, or why no file does."""
    source = node.source if node.source is not None and node.source.name == node.op else None
    if isinstance(node.attrs, ForeignOp):
        if source is None:
            return Unsupported("it is not known how the file had it")
        packed = repack(source) if source.gap and source.place and repack else None
        if packed is not None:
            return OperatorOptions({}, source.custom_options, packed)
        if source.gap:
            return Unsupported(f"it cannot be written again: {source.gap}")
        return OperatorOptions(source.fields, source.custom_options)
    reason = unknown_reason(node.attrs)
    if reason is not None:
        return Unsupported(reason)
    op = ops.get(node.op)
    if op is None:
        return Unsupported(f"op {node.op} is not known; a plugin may define it")
    if not op.is_custom and node.op not in BUILTIN_CODES:
        return Unsupported(f"no file has an operator {node.op}")
    told = tensor_fields(node)
    for found in _candidates(node, op):
        fields = Fields(node.op, {**found.fields, **told}, found.custom_options)
        parsed = attempt(op.parse, fields)
        if not isinstance(parsed, Failed) and attempt(lambda p=parsed: p == node.attrs) is True:
            return found
    return Unsupported(f"no options of {node.op} in a file say what it has become")


def small_model(
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    ops: Mapping[str, OpDef],
    repack: Repack | None = None,
) -> SmallModel | Unsupported:
    """Write nodes, in topological order, as a model; or say which of them cannot be written.

    Constants are copied into it, each once. Variables are variables there too, with contents of
    their own.
    """
    writing = _Writing(repack)
    for value in inputs:
        writing.tensor(value)
    for node in nodes:
        refused = writing.add(node, ops)
        if refused is not None:
            return Unsupported(f"{node.label}: {refused.reason}")
    spec = ModelSpec(
        writing.specs,
        writing.operators,
        [writing.tensor(v) for v in inputs],
        [writing.tensor(v) for v in outputs],
        subgraphs=writing.bodies.specs,
    )
    try:
        content = write_model(spec)
    except ModelError as error:
        return Unsupported(str(error))
    return SmallModel(content, writing.places, tuple(writing.owners))


def _candidates(node: Node, op: OpDef) -> Iterator[OperatorOptions]:
    source, activation = node.source, op.activation_of(node)
    if source is not None and source.name == node.op and not source.gap:
        given = OperatorOptions(source.fields, source.custom_options)
        yield given
        if _ACTIVATION in source.fields:  # a pass may have fused one
            yield attrs.evolve(given, fields={**source.fields, _ACTIVATION: activation.value})
    expected = options_of(node.op) if node.op in BUILTIN_CODES else None
    if expected is None:
        yield OperatorOptions({})
        return
    guessed = default_fields(expected.table)
    for name in guessed:
        if hasattr(node.attrs, name):
            value = getattr(node.attrs, name)
            guessed[name] = value.value if isinstance(value, enum.Enum) else value
    if _ACTIVATION in guessed and op.arithmetic.activation_field:
        guessed[_ACTIVATION] = activation.value
    yield OperatorOptions(guessed)


def _counts(quant: Quantization) -> bool:
    """Whether scales are numbers to divide by, and their steps f32 numbers: others end a process in
    a check of LiteRT's. A single slice of a filter may have a scale of 0."""
    return all(
        (is_divisor(scale) or (quant.per_axis and scale == 0)) and scale * _STEPS < _F32_MAX
        for scale in quant.scale
    )


def _written(value: Value) -> DType:
    """The type of a tensor: that of the file for constants of less than a byte, since LiteRT has
    other kernels for bytes, which round otherwise. What is computed is bytes, and fitted by a node
    of its own."""
    if value.data is None or value.packed is None or value.dtype is not value.packed.unpacked:
        return value.dtype
    return value.packed


class _Writing:
    def __init__(self, repack: Repack | None) -> None:
        self.repack = repack
        self.specs: list[TensorSpec] = []
        self.operators: list[OperatorSpec] = []
        self.owners: list[Node] = []
        self.places: dict[int, int] = {}
        self.bodies = Bodies()

    def tensor(self, value: Value | None) -> int:
        if value is None:
            return -1
        if value.id not in self.places:
            self.places[value.id] = self._new(self._spec(value))
        return self.places[value.id]

    def _spec(self, value: Value) -> TensorSpec:
        """A tensor as the file has it: LiteRT rounds what meets weights in blocks."""
        held, name, shape = value.contents, value.name, value.shape
        if isinstance(held, StoredReals) and isinstance(held.quantization, BlockScales):
            scales, size = held.quantization.scales, held.quantization.size
            if scales.dtype == np.float16:
                place = self._new(TensorSpec(f"{name} scales", scales.shape, DType.F16, scales))
                blocks = Blockwise(place, -1, size)
                return TensorSpec(name, shape, DType.I4, held.stored(), blockwise=blocks)
        return TensorSpec(name, shape, _written(value), value.data, value.quant, value.is_variable)

    def add(self, node: Node, ops: Mapping[str, OpDef]) -> Unsupported | None:
        for value in (*node.inputs, *node.outputs):
            if value is None:
                continue
            if not value.dtype.has_numpy:
                return Unsupported(f"tensor {value.name} is {value.dtype.value}")
            if value.is_const and not value.elements:
                # A buffer of no bytes is no constant to a reader.
                return Unsupported(f"the constant {value.name} is empty")
            if value.quant is not None and not _counts(value.quant):
                return Unsupported(f"f32 cannot count with the scale of {value.name}")
        if node.op == SIMULATOR and isinstance(node.attrs, QuantizeAndDequantize):
            return self._add_simulator(node, node.attrs)
        if node.op == ROUNDING and node.input(0).dtype is DType.F32:
            self._add_rounding(node)
            return None
        found = options_for(node, ops, self.repack)
        if isinstance(found, Unsupported):
            return found
        fields = found.fields
        if node.source is not None and node.source.bodies:
            try:
                fields = self.bodies.take(fields, node.source.bodies)
            except UnsupportedError as error:
                return Unsupported(str(error))
        self._operator(
            node,
            OperatorSpec(
                node.op,
                fields,
                self._operands(node, ops.get(node.op)),
                [self.tensor(v) for v in node.outputs],
                version=node.version,
                custom_options=found.custom_options,
                intermediates=[
                    self.tensor(v) for v in (node.source.intermediates if node.source else ())
                ],
                packed=found.packed,
            ),
        )
        return None

    def _operands(self, node: Node, op: OpDef | None) -> list[int]:
        """A node's operands, and a bias of zeros where a filter has none: LiteRT's convolutions
        want one."""
        operands = [self.tensor(v) for v in node.inputs]
        known = op is not None and unknown_reason(node.attrs) is None
        for index in op.states_of(node.attrs) if op is not None and known else ():
            at = operands[index]  # LiteRT wants a variable, also where an operator makes it anew
            self.specs[at] = attrs.evolve(self.specs[at], is_variable=True)
        bias = None if op is None or op.arithmetic.filter is None else op.arithmetic.filter.bias
        if bias == 2 and node.optional_input(bias) is None and node.input(0).dtype is DType.F32:
            channels = node.outputs[0].shape[-1]
            zeros = TensorSpec("no bias", (channels,), data=np.zeros(channels, np.float32))
            operands[bias:] = [self._new(zeros)]
        return operands

    def _add_simulator(self, node: Node, steps: QuantizeAndDequantize) -> Unsupported | None:
        """Rounding to what a type can store is storing it and taking it back."""
        stored = {255: DType.I8, 65535: DType.I16}.get(steps.high - steps.low)
        if stored is None or node.input(0).dtype is not DType.F32:
            return Unsupported(f"no file stores steps from {steps.low} to {steps.high}")
        least = int(np.iinfo(stored.numpy).min)
        zero = least - steps.low
        if not least <= zero <= -least - 1 or (stored is DType.I16 and zero != 0):
            return Unsupported(f"no file stores steps from {steps.low} to {steps.high}")
        quant = Quantization((steps.scale,), (zero,))
        (x,), (out,) = node.inputs, node.outputs
        between = self._new(TensorSpec(f"{out.name} stored", out.shape, stored, None, quant))
        self._operator(node, OperatorSpec("QUANTIZE", {}, [self.tensor(x)], [between]))
        self._operator(
            node,
            OperatorSpec(
                "DEQUANTIZE",
                {},
                [between],
                [self.tensor(out)],
                version=3 if stored is DType.I16 else 2,
            ),
        )
        return None

    def _add_rounding(self, node: Node) -> None:
        """Rounding to bf16 is a cast to it and one back."""
        (x,), (out,) = node.inputs, node.outputs
        between = self._new(TensorSpec(f"{out.name} in bf16", out.shape, DType.BF16))
        for source, result, types in (
            (self.tensor(x), between, (DType.F32, DType.BF16)),
            (between, self.tensor(out), (DType.BF16, DType.F32)),
        ):
            fields = dict(
                zip(("in_data_type", "out_data_type"), (t.tflite for t in types), strict=True)
            )
            self._operator(node, OperatorSpec("CAST", fields, [source], [result], version=7))

    def _operator(self, node: Node, spec: OperatorSpec) -> None:
        self.operators.append(spec)
        self.owners.append(node)

    def _new(self, spec: TensorSpec) -> int:
        self.specs.append(spec)
        return len(self.specs) - 1
