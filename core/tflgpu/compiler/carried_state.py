"""Which inputs a part keeps on the device from run to run, and why it does not keep others.

    cache ->  DYNAMIC_UPDATE_SLICE -> cache of the next run
                      |
                      v
                  attention

An input of a graph may be an output of the run before, as the contents of variables are. Where one
part reads the input and makes the output, and neither has another reader, the part keeps it as a
state tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tflgpu.compiler.parts import Declined, Part
from tflgpu.compiler.repeat import as_state
from tflgpu.ir.graph import Value
from tflgpu.values import frozen

#: Of values by id: what a run makes, and the input that this is in the next.
Pairs = Sequence[tuple[int, int]]


@frozen(eq=False)
class CarriedState:
    """State that parts keep on the device between runs.

    Attributes:
        carries: By part's index: the output of its plan that each such input is in the next run.
        refused: Inputs that no part keeps, by id, with reasons.
    """

    carries: Mapping[int, Mapping[int, int]]
    refused: Mapping[int, str]

    def of(self, index: int, part: Part) -> tuple[Part, tuple[Value, ...]]:
        """A part as it is loaded, and what it keeps besides its states."""
        carries = self.carries.get(index)
        found = as_state(part, carries) if carries else None
        return (part, ()) if found is None else found


def kept_by(parts: Sequence[Part], refusals: Sequence[Declined], pairs: Pairs) -> CarriedState:
    """Look for the part of each pair.

    Args:
        parts: Of a compiled graph.
        refusals: Its nodes that stay on the CPU.
        pairs: What is to be kept.
    """
    carries: dict[int, dict[int, int]] = {}
    refused: dict[int, str] = {}
    for made, given in pairs:
        found = _place(parts, refusals, made, given)
        if isinstance(found, str):
            refused[given] = found
            continue
        index, i, o = found
        if o in carries.get(index, {}).values():
            refused[given] = "what it becomes is what another one becomes too"
        else:
            carries.setdefault(index, {})[i] = o
    return CarriedState(carries, refused)


def _place(
    parts: Sequence[Part], refusals: Sequence[Declined], made: int, given: int
) -> tuple[int, int, int] | str:
    """The part, and its input and output."""
    readers = [at for at, part in enumerate(parts) if any(v.id == given for v in part.inputs)]
    makers = [at for at, part in enumerate(parts) if any(v.id == made for v in part.outputs)]
    if not readers:
        return "no operator reads it when the model runs"
    if not makers:
        return "what it becomes is known before the model runs"
    for at in (*readers, *makers):
        if not parts[at].delegated or parts[at].plan is None:
            return _on_cpu(parts[at], refusals)
    if len(readers) > 1 or readers != makers:
        return (
            "it is read and made in several parts of the model, between which operators run "
            "on the CPU"
        )
    (at,) = readers
    part = parts[at]
    if any(v.id == made for other in parts for v in other.inputs):
        return (
            "another part of the model takes what it becomes; operators between the two run "
            "on the CPU"
        )
    if part.states:
        return "the same operators keep state tensors, which the host sees between runs here"
    i = next(i for i, v in enumerate(part.inputs) if v.id == given)
    o = next(o for o, v in enumerate(part.outputs) if v.id == made)
    assert part.plan is not None
    before, after = part.plan.inputs[i], part.plan.outputs[o]
    if (before.shape, before.dtype) != (after.shape, after.dtype):
        return (
            f"it is read as {before.dtype.value}{list(before.shape)} and becomes "
            f"{after.dtype.value}{list(after.shape)}"
        )
    return at, i, o


def _on_cpu(part: Part, refusals: Sequence[Declined]) -> str:
    """Why a part is on the CPU, as the reason why its state is not kept."""
    origins = {origin for node in part.nodes for origin in node.origins}
    for declined in refusals:
        if origins.intersection(declined.origins):
            return f"{declined.label}, which has to do with it, runs on the CPU: {declined.reason}"
    return "operators that have to do with it run on the CPU"
