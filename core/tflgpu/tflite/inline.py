"""Replaces composites by the operators of their decomposition.

A `STABLEHLO_COMPOSITE` is a name and attributes for a subgraph of operators, its decomposition. A
delegate may know the name; running the operators of the decomposition instead is right by
definition, and LiteRT's interpreter does that before it runs a model. Here it is done when a file
is read, so that the rest of tflgpu sees ordinary operators. Each keeps the composite that it came
from, so that the compiler may put one op in their place (`tflgpu.compiler.composites`).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tflgpu.errors import ModelError
from tflgpu.errors.blame import quoted
from tflgpu.ir.graph import Composite
from tflgpu.tflite.model_file import (
    FieldValue,
    ModelFile,
    OperatorInfo,
    SubgraphInfo,
    TensorInfo,
)

NAME = "STABLEHLO_COMPOSITE"


def inlined(file: ModelFile) -> ModelFile:
    """The model without composites: each is replaced by the operators of its decomposition.

    Tensors of the file keep their indices; those of decompositions come after them. Operators are
    numbered anew, in order of execution. `check_nesting` says that this ends.

    Raises:
        ModelError: a composite's decomposition does not take or give what it does.
    """
    if not any(_is_composite(o) for s in file.subgraphs for o in s.operators):
        return file
    subgraphs = tuple(
        _Inlining(file.subgraphs, number).done() for number in range(len(file.subgraphs))
    )
    return attrs.evolve(file, subgraphs=subgraphs)


def _numbers(value: FieldValue) -> tuple[int, ...]:
    return tuple(int(v) for v in value) if isinstance(value, tuple) else ()


def _is_composite(operator: OperatorInfo) -> bool:
    return operator.name == NAME and not operator.is_custom


def _decomposition(operator: OperatorInfo) -> int:
    return int(str(operator.fields["decomposition_subgraph_index"]))


def _named(operator: OperatorInfo) -> str:
    return f"composite {quoted(str(operator.fields['name']))}"


class _Inlining:
    """One subgraph, written anew."""

    def __init__(self, subgraphs: Sequence[SubgraphInfo], number: int) -> None:
        self.subgraphs = subgraphs
        self.number = number
        self.tensors: list[TensorInfo] = list(subgraphs[number].tensors)
        self.operators: list[OperatorInfo] = []

    def done(self) -> SubgraphInfo:
        info = self.subgraphs[self.number]
        if not any(map(_is_composite, info.operators)):
            return info
        same = list(range(len(info.tensors)))
        for operator in info.operators:
            self._add(operator, same, (), (self.number,))
        return attrs.evolve(info, tensors=tuple(self.tensors), operators=tuple(self.operators))

    def _add(
        self,
        operator: OperatorInfo,
        places: Sequence[int],
        inside: tuple[Composite, ...],
        path: tuple[int, ...],
    ) -> None:
        """An operator whose tensors are at ``places`` now, ``inside`` composites."""

        def moved(indices: Sequence[int]) -> tuple[int, ...]:
            return tuple(-1 if i < 0 else places[i] for i in indices)

        found = attrs.evolve(
            operator,
            index=len(self.operators),
            inputs=moved(operator.inputs),
            outputs=moved(operator.outputs),
            intermediates=moved(operator.intermediates),
            composites=inside,
        )
        if _is_composite(operator):
            self._expand(found, operator.index, path)
            return
        self.operators.append(found)

    def _expand(self, operator: OperatorInfo, index: int, path: tuple[int, ...]) -> None:
        fields, number = operator.fields, _decomposition(operator)
        where = f"subgraph {path[-1]}, operator {index} ({_named(operator)})"
        body = self.subgraphs[number]
        self._check(operator, body, f"{where}: its decomposition, subgraph {number},")
        places = self._places(operator, body)
        composite = Composite(
            str(fields["name"]),
            bytes(_numbers(fields["composite_attributes"])),
            operator.inputs,
            operator.outputs,
            index,
            len(self.operators),
            int(str(fields["version"])),
        )
        for inner in body.operators:
            self._add(inner, places, (*operator.composites, composite), (*path, number))
        for given, wanted in zip(body.outputs, operator.outputs, strict=True):
            if places[given] != wanted:
                self._copy(places[given], wanted, operator.composites)

    def _check(self, operator: OperatorInfo, body: SubgraphInfo, where: str) -> None:
        for what, mine, other in (
            ("takes", operator.inputs, body.inputs),
            ("gives", operator.outputs, body.outputs),
        ):
            if len(mine) != len(other):
                raise ModelError(f"{where} {what} {len(other)} tensors, not {len(mine)}")
            for outer, inner in zip(mine, other, strict=True):
                found = body.tensors[inner].dtype
                wanted = found if outer < 0 else self.tensors[outer].dtype
                if wanted is not found:
                    raise ModelError(f"{where} {what} {found.value}, not {wanted.value}")

    def _places(self, operator: OperatorInfo, body: SubgraphInfo) -> list[int]:
        """Where each tensor of a decomposition is now: an operand, a result, or a new tensor."""
        made = {i for inner in body.operators for i in inner.outputs}
        places: dict[int, int] = dict(zip(body.inputs, operator.inputs, strict=True))
        for inner, outer in zip(body.outputs, operator.outputs, strict=True):
            if inner in made and inner not in places:
                places[inner] = outer
        found = []
        for tensor in body.tensors:
            if tensor.index not in places:
                places[tensor.index] = len(self.tensors)
                self.tensors.append(attrs.evolve(tensor, index=len(self.tensors)))
            found.append(places[tensor.index])
        return found

    def _copy(self, source: int, target: int, inside: tuple[Composite, ...]) -> None:
        """A result that is an operand, a constant, or another result too."""
        if source < 0:
            raise ModelError(
                f"subgraph {self.number}: a composite gives an operand back that is absent"
            )
        scalar = not self.tensors[source].shape and self.tensors[source].has_rank
        fields = {"new_shape": ()} if scalar else {"axis": 0, "fused_activation_function": 0}
        self.operators.append(
            OperatorInfo(
                len(self.operators),
                "RESHAPE" if scalar else "CONCATENATION",
                False,
                1,
                (source,),
                (target,),
                fields=fields,
                composites=inside,
            )
        )
