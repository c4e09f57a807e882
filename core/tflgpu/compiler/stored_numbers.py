"""Replaces a quantized operator by the op that computes the same on stored whole numbers.

It is chosen for each operator, after the kernel rules were asked:

    ADD of i8 -> an op that `Quantized.integers` says stands for it -> a rule that takes the node?
        yes: that op takes its place, on i8 tensors       no: ADD of f32, rounded afterwards
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tflgpu.compiler.numerics import Numerics
from tflgpu.errors import TflgpuError
from tflgpu.ir.graph import Node
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import OpDef, known_operands
from tflgpu.ops.unknown import unknown_reason


def numerics_for(op: OpDef) -> Numerics:
    """The numerics with which an op comes up in graphs."""
    return Numerics.INTEGER if op.quantized.integers is not None else Numerics.FLOAT


def integer_node(
    node: Node, ops: Mapping[str, OpDef], refusal: Callable[[Node], Unsupported | None]
) -> Node | Unsupported:
    """A node, in no graph yet, that does on stored numbers what the given one does on real ones; or
    why there is none.

    Args:
        node: It reads or makes quantized tensors.
        ops: Op definitions by name. Where several ops could take its place, a plugin's is asked
            before a shipped one.
        refusal: Why such a node could not run, None where it could.

    Raises:
        PluginError: a plugin's op broke its contract.
    """
    own = ops.get(node.op)
    stands = ((op, op.quantized.integers) for op in ops.values())
    found = [(op, kind) for op, kind in stands if kind is not None and kind.op == node.op]
    if own is None or not found:
        return Unsupported(f"nothing computes {node.op} on stored numbers")
    if node.version > own.file.max_version or unknown_reason(node.attrs) is not None:
        return Unsupported(f"this {node.op} is not known")
    if not node.shapes_known:
        return Unsupported("its shapes are not known before the model runs")
    reasons: list[str] = []
    for op, kind in sorted(found, key=lambda each: (not each[0].owner, each[0].name)):
        attributes = kind.attributes(node)
        if isinstance(attributes, str):
            reasons.append(attributes)
            continue
        made = Node(op.name, attributes, list(node.inputs), list(node.outputs), 1, node.origins)
        refused = refusal(made) or _other_results(made, op)
        if refused is None:
            return made
        reasons.append(refused.reason)
    return Unsupported("; ".join(dict.fromkeys(reasons)))


def _other_results(node: Node, op: OpDef) -> Unsupported | None:
    """Why the results of a node would not be the tensors that are in its place."""
    try:
        specs = list(op.infer(node.attrs, known_operands(node.inputs)))
    except TflgpuError as error:
        return Unsupported(str(error))
    if specs != [v.spec for v in node.outputs]:
        return Unsupported(f"{op.name} gives {', '.join(map(str, specs))}")
    return None
