"""The operands of a recurrent cell, as a table that says which gates and extras a cell has.

A gate, a peephole, a projection or a layer norm whose operands are absent is one that the cell does
not have. An LSTM has four gates and two states, an RNN one of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from tflgpu.ir.dtypes import Array
from tflgpu.ops.operand import Arrays

GATES = ("input", "forget", "cell", "output")
#: Positions of gates in every set that a cell has of them; an RNN has one gate only.
INPUT_GATE, FORGET_GATE, NEW_CONTENT, OUTPUT_GATE = range(4)
#: Gates that see the cells where there are peepholes, in the order of their operands.
PEEPHOLE_GATES = (INPUT_GATE, FORGET_GATE, OUTPUT_GATE)


@attrs.frozen
class CellOperands:
    """At which positions of a node the operands of one direction are; the input is operand 0.

    Attributes:
        weights, recurrent, biases: By gate.
        states: The output state and, of an LSTM, the cell state.
        peepholes: By `PEEPHOLE_GATES`.
        projection: Weights and bias.
        norms: Of layer norms, by gate.
        second: A second input.
        second_weights: By gate, the weights of that.
    """

    weights: tuple[int, ...]
    recurrent: tuple[int, ...]
    biases: tuple[int, ...]
    states: tuple[int, ...]
    peepholes: tuple[int, ...] = ()
    projection: tuple[int, ...] = ()
    norms: tuple[int, ...] = ()
    second: int | None = None
    second_weights: tuple[int, ...] = ()

    @property
    def constants(self) -> tuple[int, ...]:
        """All but the states."""
        sets = (self.weights, self.recurrent, self.peepholes, self.biases, self.norms)
        return (*(i for s in sets for i in s), *self.projection, *self.second_weights)

    @property
    def names(self) -> dict[int, str]:
        """What messages call an LSTM's operands, by position."""
        sets = [
            (self.weights, [f"{gate} weights" for gate in GATES]),
            (self.recurrent, [f"{gate} recurrent weights" for gate in GATES]),
            (self.peepholes, [f"{GATES[gate]} gate's peephole" for gate in PEEPHOLE_GATES]),
            (self.biases, [f"{gate} bias" for gate in GATES]),
            (self.projection, ["projection weights", "projection bias"]),
            (self.states, ["output state", "cell state"]),
            (self.norms, [f"{gate} layer norm" for gate in GATES]),
        ]
        return {i: name for s, names in sets for i, name in zip(s, names, strict=False)}


@attrs.frozen(eq=False)
class CellWeights:
    """The contents of a direction's constants: by gate, None where there is none."""

    weights: Arrays
    recurrent: Arrays
    biases: Arrays
    peepholes: Arrays
    norms: Arrays
    projection: Array | None
    projection_bias: Array | None

    @classmethod
    def of(cls, places: CellOperands, get: Callable[[int], Array | None]) -> CellWeights:
        """Those that ``get`` gives by position."""

        def several(positions: Sequence[int], count: int) -> list[Array | None]:
            return [get(i) for i in positions] or [None] * count

        first, forget, output = several(places.peepholes, 3)
        return cls(
            several(places.weights, 0),
            several(places.recurrent, 0),
            several(places.biases, 0),
            [first, forget, None, output],
            several(places.norms, 4),
            *several(places.projection, 2),
        )


def positions(first: int, count: int = 4) -> tuple[int, ...]:
    """Those of a set of operands."""
    return tuple(range(first, first + count))


def lstm_operands(first: int, states: int) -> CellOperands:
    """Those of an LSTM: constants from position ``first`` on, and two states."""
    return CellOperands(
        positions(first),
        positions(first + 4),
        positions(first + 11),
        positions(states, 2),
        positions(first + 8, 3),
        positions(first + 15, 2),
    )


#: Of LSTM's full kernel and of UNIDIRECTIONAL_SEQUENCE_LSTM.
LSTM = attrs.evolve(lstm_operands(1, 18), norms=positions(20))
