"""What an op is: one definition that the reader, partitioner, reference, tests and docs read.

An op family is a module in `tflgpu.ops` with a module-level ``OPS`` tuple of `OpDef`. Nothing
else lists ops: the registry finds the modules by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tflgpu.errors import DynamicError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.facets import (
    Arithmetic,
    Batched,
    Composed,
    Contents,
    FileForm,
    Items,
    Movement,
    OnDevice,
    Reading,
    Variables,
)
from tflgpu.ops.fields import Activation, Fields, Padding, graph_attributes
from tflgpu.ops.items import elementwise
from tflgpu.ops.operand import Arrays, Operand, Operands, known_operands
from tflgpu.ops.positions import Rule
from tflgpu.ops.quantized import Quantized
from tflgpu.ops.samples import Accuracy, Arg, Draw, Sample
from tflgpu.values import Factory, field, frozen

__all__ = [
    "Accuracy", "Activation", "Arg", "Arithmetic", "Arrays", "Composed", "Contents", "Draw",
    "Fields", "FileForm", "Infer", "Movement", "NoAttrs", "OnDevice", "OpDef", "Operand",
    "Operands", "Padding", "Quantized", "Reading", "Reference", "Sample", "Variables",
    "graph_attributes", "known_operands", "no_attrs",
]  # fmt: skip

Infer = Callable[[Any, Operands], list[TensorSpec]]
Reference = Callable[[Any, Arrays], list[Array]]


@frozen
class OpDef:
    """One op, completely. What it can leave unsaid stands in groups, one question each.

    Attributes:
        name: TFLite's builtin name ("CONV_2D") or the custom op's code.
        parse: Option fields -> frozen attribute value.
        infer: Attributes and operands -> specs of the outputs. Raises `ModelError` for
            operands that no version of the op takes, naming the operand, and
            `UnsupportedError` for what is right but beyond tflgpu.
        reference: Attributes and arrays -> output arrays, in NumPy, computing in the operands'
            own precision (f16 through f32). The definition that every backend is held to, and
            what runs on the CPU. Must not write into its inputs. A stateful op's gives the
            outputs followed by the new contents of each variable operand, in operand order.
        samples: Test cases, with odd sizes; checked against LiteRT and on every backend.
        generate: Draws a random sample, for the conformance suite; without it the suite resizes
            the samples, which is enough where operands of any size fit together.
        accuracy: Tolerance class of its results.
        is_custom: Whether the name is a custom op's code.
        elementwise: Whether each output element depends only on the same (broadcast) element
            of each operand; a function of the node where the op pairs elements in another way in
            some. Ask `is_elementwise`.
        batch: Node and items -> what it has to become to compute several items at once, each as it
            would alone (`Items`); or the reason why it cannot. None = it does not say, so that a
            model with such a node is not run in batches. An elementwise op need not say.
        positions: The node at a size and at a smaller one -> what it does along axes that change
            in size (`Positions`), or the reason why a plan of the one does not compute the other.
            None = it does not say, so that each size has a plan. An elementwise op need not say.
        file: How files have it.
        contents: What its tensors hold.
        device: What a device does with it.
        movement: Which elements of operands its result has.
        arithmetic: What passes know of its arithmetic.
        quantized: What it is where tensors are quantized.
        state: What it keeps between runs; None = nothing.
        owner: The plugin that brought it, "" for a shipped one. The registry fills it in.
    """

    name: str
    parse: Callable[[Fields], Any]
    infer: Infer
    reference: Reference
    samples: Callable[[], Sequence[Sample]]
    generate: Callable[[Draw], Sample] | None = None
    accuracy: Accuracy = Accuracy.ROUNDED
    is_custom: bool = False
    elementwise: bool | Callable[[Node], bool] = False
    batch: Callable[[Node, Items], Batched | str] | None = Factory(
        lambda self: elementwise if self.elementwise else None, takes_self=True
    )
    positions: Rule | None = None
    file: FileForm = FileForm()
    contents: Contents = Contents()
    device: OnDevice = OnDevice()
    movement: Movement = Movement()
    arithmetic: Arithmetic = Arithmetic()
    quantized: Quantized = Quantized()
    state: Variables | None = None
    owner: str = field(default="", eq=False)

    def must_know(self, attributes: Any, operands: Operands) -> tuple[int, ...]:
        """Positions of the constants whose contents shape inference needs, so that they must be
        known before the model runs (RESHAPE's shape, SLICE's box): each is withheld in turn."""
        needed = []
        for index, operand in enumerate(operands):
            if operand is None or operand.data is None:
                continue
            try:
                self.infer(
                    attributes, [*operands[:index], Operand(operand.spec), *operands[index + 1 :]]
                )
            except DynamicError:
                needed.append(index)
        return tuple(needed)

    def is_elementwise(self, node: Node) -> bool:
        """Whether each element of a node's result depends only on the same (broadcast) element of
        each operand."""
        return self.elementwise(node) if callable(self.elementwise) else self.elementwise

    def activation_of(self, node: Node) -> Activation:
        """The activation fused into a node of this op."""
        if not self.arithmetic.activation_field:
            return Activation.NONE
        found = getattr(node.attrs, self.arithmetic.activation_field)
        assert isinstance(found, Activation)
        return found

    def states_of(self, attributes: Any) -> tuple[int, ...]:
        """Positions of the operands that are the state of a node with such attributes."""
        if self.state is None or self.state.operands is None:
            return ()
        return self.state.operands(attributes)

    def has_one_scale(self, dtype: DType) -> bool:
        """Whether TFLite's kernel takes all stored numbers of a type to be on the result's
        scale."""
        said = self.quantized.one_scale
        if said is None:
            return self.movement.keeps_values
        return said if isinstance(said, bool) else dtype in said


@frozen
class NoAttrs:
    """The attributes of an op that has none."""


def no_attrs(fields: Fields) -> NoAttrs:
    """`OpDef.parse` of an op without options."""
    return NoAttrs()
