"""Which of several ways to write a kernel is taken: the one that was measured to be the fastest on
the device, else the one that a model of the device predicts.

    generator -> Lowering.choose(kind, sizes, candidates, cost) -> a candidate
                        |
                 Choices.names[key]          measured here (`tflgpu.runtime.tuning`)
                 Choices.shipped[key]        measured for a release, where the same is predicted
                 min(candidates, key=cost)   where nothing was measured

The key says all that the speed of a candidate follows from: the operator, the types and shapes of
its tensors, the sizes of the problem. Problems with equal keys, of any model, share what was
measured. Without measurements a choice follows from shapes and the device alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import attrs

from tflgpu.ir.graph import Node, Value

C = TypeVar("C")


@attrs.frozen
class ChoicePoint:
    """A problem that was met while a graph was compiled.

    Attributes:
        key: As in `Choices.names`.
        candidates: The names of the ways to write its kernel, with predicted costs, in any unit;
            the least first.
        chosen: The one that was taken.
        origins: The file's operators, by index, that have this problem.
    """

    key: str
    candidates: Mapping[str, float]
    chosen: str
    origins: frozenset[int]


@attrs.frozen(eq=False)
class Choices:
    """Measured choices of one device.

    Attributes:
        names: By key, the name of the fastest candidate.
        digest: Of those that were measured on this machine; "" where none were.
        points: Filled with the problems that a compilation meets, by key; None: they are not
            listed.
        shipped: What a release brings: by key, and by the name of the candidate that was predicted
            when it was measured, the name of the fastest. Where another one is predicted now, the
            kernels or the model of the device have changed since, and it counts for nothing.
    """

    names: Mapping[str, str] = attrs.Factory(dict)
    digest: str = ""
    points: dict[str, ChoicePoint] | None = None
    shipped: Mapping[str, Mapping[str, str]] = attrs.Factory(dict)

    def choose(
        self,
        key: Callable[[], str],
        candidates: Sequence[C],
        cost: Callable[[C], float],
        nodes: Sequence[Node],
    ) -> tuple[C, str]:
        """A candidate, and its name where it was measured; "" where it is the predicted one.

        Args:
            key: Makes the problem's key.
            candidates: At least one; what is written by their fields is their name.
            cost: Predicted, in any unit.
            nodes: The nodes that have the problem.
        """
        if not self.names and not self.shipped and self.points is None:
            return min(candidates, key=cost), ""
        problem, predicted = key(), min(candidates, key=cost)
        name = self.names.get(problem) or self.shipped.get(problem, {}).get(name_of(predicted))
        # A candidate of another version may be gone.
        found = None if name is None else next((c for c in candidates if name_of(c) == name), None)
        chosen = predicted if found is None else found
        if self.points is not None:
            known = self.points.get(problem)
            origins = frozenset(o for node in nodes for o in node.origins)
            if known is not None:
                self.points[problem] = attrs.evolve(known, origins=origins | known.origins)
            else:
                ways = {name_of(each): cost(each) for each in sorted(candidates, key=cost)}
                self.points[problem] = ChoicePoint(problem, ways, name_of(chosen), origins)
        return chosen, "" if found is None else name_of(found)


def problem_key(
    kind: str,
    sizes: Sequence[int],
    precision: str,
    nodes: Sequence[Node],
    storage: Callable[[Value], str],
) -> str:
    """All that the speed of the kernels of nodes follows from, as a text.

    Args:
        kind: What is chosen.
        sizes: Those of the problem, as far as shapes do not say them.
        precision: Its name.
        nodes: In the order in which they run.
        storage: How a tensor that is no constant is stored.
    """

    def told(value: Value) -> str:
        contents = value.contents
        if contents is None:
            return f"{storage(value)}{list(value.shape)}"
        nibbles = " in nibbles" if getattr(contents, "in_nibbles", False) else ""
        stored = getattr(contents, "numbers", contents).dtype
        return f"constant {stored}{nibbles}{list(value.shape)}"

    steps = []
    for node in nodes:
        operands = ", ".join(told(v) for v in node.inputs if v is not None)
        steps.append(f"{node.op}({operands}) -> {told(node.outputs[0])}")
    cut = "x".join(map(str, sizes))
    return f"{f'{kind} {cut}'.strip()} {precision}: {'; '.join(steps)}"


#: Nothing was measured.
PREDICTED = Choices()


class Choose(Protocol):
    """`tflgpu.lowering.lowering.Lowering.choose`."""

    def __call__(
        self, kind: str, sizes: Sequence[int], candidates: Sequence[C], cost: Callable[[C], float]
    ) -> C:
        """The candidate that is taken."""
        ...


def predicted(
    kind: str, sizes: Sequence[int], candidates: Sequence[C], cost: Callable[[C], float]
) -> C:
    """A `Choose` by the predicted cost alone."""
    return min(candidates, key=cost)


def name_of(candidate: Any) -> str:
    """The name of a candidate: a text itself, or the fields of an attrs class."""
    if isinstance(candidate, str):
        return candidate
    return "x".join(map(str, attrs.astuple(candidate)))
