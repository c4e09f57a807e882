"""A composite of a model file: a name and attributes for operators that compute the same."""

from __future__ import annotations

from tflgpu.values import frozen


@frozen
class Composite:
    """A composite that an operator came from (`tflgpu.tflite.inline`).

    Attributes:
        name: such as "odml.rms_norm".
        attributes: what the file says of it, as a FlexBuffer; often empty.
        inputs: tensor indices; -1 for an absent one.
        outputs: tensor indices.
        index: its position in its subgraph of the file.
        first: index of the first operator that is in its place.
        version: of the composite, as its name's owner counts; 0 where the file has none.
    """

    name: str
    attributes: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    index: int
    first: int
    version: int = 0
