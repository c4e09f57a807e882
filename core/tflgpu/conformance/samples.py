"""From a `Sample` to something that runs: a graph of one node, arrays, and what they give; and
random samples of an op: its own generator's, or its samples with other sizes."""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.conformance.special import SpecialNumbers
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.errors import ModelError, TflgpuError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.verify import verify
from tflgpu.ops.base import Arg, Draw, Fields, OpDef, Operand, Sample


@attrs.frozen(eq=False)
class SampleCase:
    """A sample made concrete.

    Attributes:
        op: The op.
        sample: Where it came from.
        graph: One node between the runtime operands and the outputs; constants hold their data.
        arrays: By value id, the contents of every runtime operand, variables included.
        expected: What the op's reference makes of them, one array per output.
        states: New contents of the variables, in the order of the operands.
    """

    op: OpDef
    sample: Sample
    graph: Graph
    arrays: dict[int, Array]
    expected: list[Array]
    states: list[Array]

    @property
    def node(self) -> Node:
        """The graph's only node."""
        return self.graph.nodes[0]

    @property
    def given(self) -> list[Value]:
        """What a plan of the case reads, in order: the operands, and then the variables."""
        return [*self.graph.inputs, *self.variables]

    @property
    def variables(self) -> list[Value]:
        """Operands that keep their contents between runs."""
        return [v for v in self.node.inputs if v is not None and v.is_variable]

    def tolerance(self, *, half: bool = False) -> Tolerance:
        """How close a result must be."""
        return Tolerance.of(self.op.accuracy, self.sample.accumulates, half=half)


def materialize(
    op: OpDef,
    sample: Sample,
    seed: int = 0,
    *,
    half: bool = False,
    planted: SpecialNumbers | None = None,
) -> SampleCase:
    """Draw a sample's operands and compute its reference.

    The same op, sample and seed always give the same numbers. With ``half`` every float operand
    holds numbers that f16 can hold, though its dtype stays. ``planted`` says which special numbers
    are put among them.

    Raises:
        ModelError: the sample is not one that the op takes, or its reference breaks the
            promise that shape inference made.
    """
    rng = np.random.default_rng([seed, zlib.crc32(f"{op.name}/{sample.id}".encode())])
    graph = Graph(f"{op.name}/{sample.id}")
    arrays: dict[int, Array] = {}
    inputs: list[Value | None] = []
    for index, arg in enumerate(sample.args):
        if arg is None:
            inputs.append(None)
            continue
        data = arg.draw(rng)
        if half and arg.dtype is DType.F32:
            data = data.astype(np.float16).astype(np.float32)
        if planted is not None:
            data = planted.plant(index, data, rng)
        is_const = arg.const or arg.data is not None
        value = graph.add_value(
            arg.shape, arg.dtype, name=f"operand{index}", data=data if is_const else None
        )
        value.is_variable = arg.variable
        if not is_const:
            arrays[value.id] = data
            if not arg.variable:
                graph.inputs.append(value)
        inputs.append(value)

    attributes = op.parse(Fields(op.name, sample.fields, sample.custom_options))
    operands = [None if v is None else Operand(v.spec, v.data) for v in inputs]
    outputs = [
        graph.add_value(spec.shape, spec.dtype, name=f"result{i}")
        for i, spec in enumerate(op.infer(attributes, operands))
    ]
    graph.outputs = outputs
    # Conversions are told by their tensors' scales, which graph builders pass on as fields.
    for values, field in ((inputs, "input_quantization"), (outputs, "output_quantization")):
        if sample.fields.get(field) is not None and values[0] is not None:
            values[0].quant = sample.fields[field]
    graph.add_node(op.name, attributes, inputs, outputs, version=sample.version, origins=(0,))
    verify(graph)
    case = SampleCase(op, sample, graph, arrays, [], [])
    expected, states = run_reference(case, arrays)
    return attrs.evolve(case, expected=expected, states=states)


def run_reference(case: SampleCase, arrays: dict[int, Array]) -> tuple[list[Array], list[Array]]:
    """Outputs and new states for other contents of a case's operands.

    Raises:
        ModelError: the reference breaks the promise that shape inference made.
    """
    node = case.node
    operands = [
        None if v is None else arrays[v.id] if v.data is None else v.data for v in node.inputs
    ]
    with np.errstate(all="ignore"):
        results = case.op.reference(node.attrs, operands)
    _check_results(case, results)
    return list(results[: len(node.outputs)]), list(results[len(node.outputs) :])


def _check_results(case: SampleCase, results: Sequence[Array]) -> None:
    wanted = [*case.node.outputs, *case.variables]
    where = f"{case.op.name}, sample {case.sample.id}: the reference"
    if len(results) != len(wanted):
        raise ModelError(f"{where} gave {len(results)} arrays, not {len(wanted)}")
    for value, array in zip(wanted, results, strict=True):
        if array.shape != value.shape or array.dtype != value.dtype.numpy:
            raise ModelError(
                f"{where} gave {array.dtype}{list(array.shape)} for {value.name}, "
                f"inferred as {value.spec}"
            )


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
