"""The contents of a `.tflite` file, as plain checked values.

Every index that one of these holds is in range of the model it came from. Order of operators,
shapes that operators make of each other, and what any operator means are not looked at here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Composite
from tflgpu.tflite.sparsity import Sparsity
from tflgpu.values import field, frozen

FieldValue = int | float | bool | str | tuple[int, ...] | tuple[float, ...]


@frozen
class Blockwise:
    """Quantization by blocks, whose scales are a tensor of their own.

    Attributes:
        scales: index of the tensor of scales, in the same subgraph.
        zero_points: index of the tensor of zero points, or -1 for zero points of 0.
        block_size: elements along the innermost axis that share a scale; 0 where ``block_shape``
            says it for every axis.
        block_shape: elements along each axis that share a scale; often empty.
    """

    scales: int
    zero_points: int
    block_size: int
    block_shape: tuple[int, ...] = ()


@frozen(eq=False)
class TensorInfo:
    """One tensor.

    Attributes:
        index: position in its subgraph.
        name: may be empty, and need not be unique.
        shape: the sizes the file was converted with; 1 where ``shape_signature`` has -1, as a rule.
        shape_signature: as ``shape``, with -1 for sizes that are not fixed.
        dtype: element type.
        data: the constant, read-only; None for a runtime tensor. It views the file where it can and
            has the tensor's shape and dtype, with these exceptions: i4 comes unpacked as int8, bf16
            as its bit patterns in uint16, a string tensor as an object array of ``bytes``, and a
            sparse tensor as a flat array of the values stored (see `Sparsity.densify`).
        quantization: affine quantization, or None.
        sparsity: how a sparse constant is stored, or None.
        blockwise: quantization by blocks, or None.
        is_variable: keeps its value from one invocation to the next.
        has_rank: whether an empty ``shape`` is known to mean a scalar.
        buffer: index of the file's buffer.
        packed_data: the bytes of a constant of i4, with two numbers each, as the file has them.
        default: what an input has until it is set, where the file says so, in the form of ``data``;
            None of any other tensor.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    shape_signature: tuple[int, ...]
    dtype: DType
    data: Array | None = field(default=None, repr=False)
    quantization: Quantization | None = None
    sparsity: Sparsity | None = None
    blockwise: Blockwise | None = None
    is_variable: bool = False
    has_rank: bool = False
    buffer: int = 0
    packed_data: Array | None = field(default=None, repr=False)
    default: Array | None = field(default=None, repr=False)

    @property
    def is_constant(self) -> bool:
        """Whether its value is in the file."""
        return self.data is not None

    def signature(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape signature where the tensor has ``shape`` now. A file that leaves no size open
        has none, and TFLite gives the shape in its place."""
        return shape if self.shape_signature == self.shape else self.shape_signature


@frozen
class OperatorInfo:
    """One operator.

    Attributes:
        index: position in its subgraph, which is the order of execution.
        name: BuiltinOperator name such as "CONV_2D"; the custom code of a custom operator; or
            "BUILTIN_<code>" for a builtin that is younger than the schema known here.
        is_custom: whether ``name`` is a custom code.
        version: version of the operator, from 1.
        inputs: tensor indices; -1 for an optional input that is absent.
        outputs: tensor indices.
        intermediates: tensor indices, -1 for an absent one; only recurrent operators have any.
        fields: every field of the options table, by the schema's snake_case name, with the schema's
            default where the file has none. Empty for customs and for operators without options.
        custom_options: a custom operator's options, in a format of its own.
        mutating_variable_inputs: whether the operator changes each input; often empty.
        gap: why ``fields`` are not all that the file says of it; empty where they are.
        place: where there is a gap, the file and the position of the operator's table in it.
        composites: those in whose place it is, the outermost first; mostly none.
        texts: whether it takes or makes a tensor of texts (strings).
    """

    index: int
    name: str
    is_custom: bool
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...] = ()
    fields: Mapping[str, FieldValue] = field(factory=dict)
    custom_options: bytes = b""
    mutating_variable_inputs: tuple[bool, ...] = ()
    gap: str = ""
    place: tuple[memoryview, int] | None = field(default=None, eq=False, repr=False)
    composites: tuple[Composite, ...] = ()
    texts: bool = False


@frozen
class SubgraphInfo:
    """One subgraph; ``inputs`` and ``outputs`` are tensor indices."""

    name: str
    tensors: Sequence[TensorInfo]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[OperatorInfo, ...]

    @property
    def whole(self) -> SubgraphInfo:
        """This, with everything read that was left for later (`tflgpu.tflite.later`); what is made
        of one by `attrs.evolve` is made of this."""
        return self


@frozen
class SignatureInfo:
    """A named way to call a subgraph: argument name to tensor index."""

    key: str
    subgraph: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


@frozen
class OperatorCode:
    """An entry of the model's table of operators in use."""

    name: str
    is_custom: bool
    version: int


@frozen
class ModelFile:
    """One `.tflite` file.

    Attributes:
        version: schema version, always 3.
        description: free text.
        operator_codes: operators in use.
        subgraphs: at least one; the first is the main one.
        signatures: named entry points, often none.
        metadata: named blobs, each a read-only view of the file.
        content: the file's bytes; none of a model that comes from elsewhere.
    """

    version: int
    description: str
    operator_codes: tuple[OperatorCode, ...]
    subgraphs: tuple[SubgraphInfo, ...]
    signatures: tuple[SignatureInfo, ...]
    metadata: Mapping[str, memoryview]
    content: memoryview = field(default=memoryview(b""), eq=False, repr=False)

    @property
    def main(self) -> SubgraphInfo:
        """The subgraph that a call without a signature runs."""
        return self.subgraphs[0]

    @property
    def whole(self) -> ModelFile:
        """This, with everything read that was left for later (`tflgpu.tflite.later`); what is made
        of one by `attrs.evolve` is made of this."""
        return self
