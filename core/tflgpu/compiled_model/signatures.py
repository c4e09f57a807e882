"""The signatures of a compiled model: names of inputs and outputs, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tflgpu.errors import InputError
from tflgpu.errors.blame import shown
from tflgpu.ir.brief import listed
from tflgpu.tflite.model_file import ModelFile
from tflgpu.values import frozen

T = TypeVar("T")
#: The key of a model that has no signature, as LiteRT calls it.
_NO_SIGNATURE = "<placeholder signature>"


@frozen
class Signature:
    """A way to call a subgraph.

    Attributes:
        key: Its name.
        subgraph: Its index.
        inputs, outputs: Tensors by name, in the subgraph's order.
    """

    key: str
    subgraph: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]

    def side(self, *, is_input: bool) -> Mapping[str, int]:
        """Inputs or outputs."""
        return self.inputs if is_input else self.outputs


def signatures_of(model: ModelFile) -> list[Signature]:
    """The signatures of a file; where it has none, one of its main subgraph, by tensors' names."""
    found = []
    for s in model.signatures:
        info = model.subgraphs[s.subgraph]
        sides = [
            dict(sorted(named.items(), key=lambda item: order.index(item[1])))
            for named, order in ((s.inputs, info.inputs), (s.outputs, info.outputs))
        ]
        found.append(Signature(s.key, s.subgraph, *sides))
    if not found:
        main = model.subgraphs[0]
        sides = [{main.tensors[i].name: i for i in ids} for ids in (main.inputs, main.outputs)]
        found = [Signature(_NO_SIGNATURE, 0, *sides)]
    return found


def in_order(key: str, kind: str, given: Mapping[str, T], names: Mapping[str, int]) -> list[T]:
    """Buffers in the order of a signature's tensors.

    Raises:
        InputError: one is missing, or has no tensor.
    """
    missing = [name for name in names if name not in given]
    if missing:
        raise InputError(
            f"The given map is missing some {kind} TensorBuffers: {listed(missing)} of signature "
            f"{key!r}"
        )
    for name in given:
        if name not in names:
            raise unknown(kind, name, [*names], key)
    return [given[name] for name in names]


def unknown(kind: str, name: object, names: Sequence[str], key: str) -> InputError:
    """That a signature has no such input or output."""
    return InputError(
        f"{kind.capitalize()} tensor not found: {shown(name)}; signature {key!r} has "
        f"{listed([*names])}"
    )
