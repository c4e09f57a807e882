"""BIDIRECTIONAL_SEQUENCE_LSTM, versions 1-3, of floats: two cells, one from the end to the beginning.

The cells are those of `ops/lstm_cell.py`, without layer normalisation; `ops/both_ways.py` has what
the two directions share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.activation import computable_activation
from tflgpu.ops.axes import present
from tflgpu.ops.base import Accuracy, Activation, Arg, Fields, OpDef, Operand, Sample
from tflgpu.ops.both_ways import check_second, join, join_specs, sizes_of, steps_of
from tflgpu.ops.facets import Hybrid, Work
from tflgpu.ops.lstm_cell import Cell, CellRunner, Places, check_operands, hybrid_cell
from tflgpu.ops.products import floats, needed
from tflgpu.ops.quantize_on_the_fly import rounding_of

OP = "BIDIRECTIONAL_SEQUENCE_LSTM"
_COUNT = 48
SECOND = 39
#: By direction: the first of four positions of the second input's weights.
SECOND_WEIGHTS = (40, 44)


def _places(first: int, states: int) -> Places:
    def run(offset: int, count: int = 4) -> tuple[int, ...]:
        return tuple(range(first + offset, first + offset + count))

    return Places(
        0, run(0), run(4), run(8, 3), run(11), first + 15, first + 16, states, states + 1
    )  # fmt: skip


#: Where the operands of the forward and of the backward direction are.
WAYS = (_places(1, 35), _places(18, 37))


@attrs.frozen
class BothLstm:
    """Options; ``merged`` puts the outputs of both directions beside each other into one."""

    cell: Cell
    time_major: bool
    merged: bool


def _parse(fields: Fields) -> BothLstm:
    clips: list[float] = []
    for name in ("cell_clip", "proj_clip"):
        clips.append(fields.number(name))
        if not clips[-1] >= 0:
            raise ModelError(f"{OP}: option {name} is {clips[-1]}, must be >= 0")
    cell = Cell(computable_activation(fields), clips[0], clips[1], rounding_of(fields))
    return BothLstm(cell, fields.flag("time_major", True), fields.flag("merge_outputs"))


def _infer(attributes: BothLstm, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    if len(operands) != _COUNT:
        raise ModelError(f"{OP} takes {_COUNT} operands, got {len(operands)}")
    source = needed(OP, operands[0], "input", 3)
    second = operands[SECOND]
    weights = [operands[first + i] for first in SECOND_WEIGHTS for i in (1, 2, 3)]
    check_second(OP, source, second, weights)
    batch = sizes_of(source.shape, attributes.time_major)[0]
    units: list[int] = []
    cells: set[int] = set()
    for places, first in zip(WAYS, SECOND_WEIGHTS, strict=True):
        own = [operands[i] for i in places.all]
        sizes = check_operands(OP, own, batch, source.shape[2], places.all)
        units.append(sizes.outputs)
        cells.add(sizes.cells)
        for gate, at in enumerate(places.weights):
            extra = operands[first + gate]
            wanted = weights[0] is not None and operands[at] is not None
            if (extra is not None) != wanted:
                raise ModelError(
                    f"{OP}: the second input's weights (operand {first + gate}) and the input's "
                    f"(operand {at}) are not both there"
                )
            if extra is not None and second is not None and extra.shape != (
                sizes.cells, second.shape[2],
            ):  # fmt: skip
                raise ModelError(
                    f"{OP}: the second input's weights (operand {first + gate}) have shape "
                    f"{list(extra.shape)}, not {[sizes.cells, second.shape[2]]}"
                )
    if len(cells) > 1:
        raise ModelError(
            f"{OP}: the directions have {sorted(cells)} cells; TFLite's kernel takes as many in both"
        )
    return join_specs(source, units, merged=attributes.merged)


def _reference(attributes: BothLstm, arrays: Sequence[Array | None]) -> list[Array]:
    source = present(arrays[0])
    outputs, states = [], []
    for way, places in enumerate(WAYS):
        own = [arrays[i] for i in places.all]
        x = floats(OP, source)
        if arrays[SECOND_WEIGHTS[way] + 1] is not None:
            x = np.concatenate([x, floats(OP, arrays[SECOND])], axis=2)
            for gate in range(4):
                if own[1 + gate] is not None:
                    pair = (own[1 + gate], arrays[SECOND_WEIGHTS[way] + gate])
                    own[1 + gate] = np.concatenate([floats(OP, a) for a in pair], axis=1)
        turn = slice(None, None, -1 if way else 1)
        runner = CellRunner(OP, attributes.cell, own)
        hidden, cells = (floats(OP, arrays[i]) for i in (places.output_state, places.cell_state))
        found = []
        for step in steps_of(x, attributes.time_major)[turn]:
            hidden, cells = runner.step(
                step, hidden.reshape(len(step), -1), cells.reshape(len(step), -1)
            )
            found.append(hidden)
        outputs.append(np.stack(found[turn]))
        for index, new in ((places.output_state, hidden), (places.cell_state, cells)):
            old = present(arrays[index])
            states.append(new.reshape(old.shape).astype(old.dtype, copy=False))
    return [*join(outputs, source, attributes.time_major, merged=attributes.merged), *states]


def _hybrid(node: Node) -> Hybrid:
    found: BothLstm = node.attrs
    return hybrid_cell(node, found.cell, lambda cell: attrs.evolve(found, cell=cell), SECOND)


def _work(node: Node) -> Work:
    """Every matrix is used once a batch and time step."""
    weights = sum(v.elements for v in node.inputs[1:] if v is not None and len(v.shape) == 2)
    return Work.of(node, 2 * weights * math.prod(node.input(0).shape[:-1]))


def _samples() -> list[Sample]:
    def cell(
        batch: int, inputs: int, cells: int, project: int, *, coupled: bool, peephole: bool
    ) -> tuple[list[Arg | None], list[Arg | None]]:
        """The weights of a direction, and its states."""
        outputs = project or cells

        def weights(*size: int, when: bool = True) -> Arg | None:
            return Arg(size, const=True) if when else None

        def gates(*size: int) -> list[Arg | None]:
            return [weights(*size, when=not (coupled and gate == 0)) for gate in range(4)]

        found = [
            *gates(cells, inputs), *gates(cells, outputs),
            weights(cells, when=peephole and not coupled), weights(cells, when=peephole),
            weights(cells, when=peephole), *gates(cells),
            weights(outputs, cells, when=project > 0), weights(outputs, when=project > 0),
        ]  # fmt: skip
        states = [Arg((batch, n), variable=True) for n in (outputs, cells)]
        return found, list(states)

    def case(
        id: str, shape: tuple[int, int, int], cells: int, *, project: int = 0,
        time_major: bool = False, merged: bool = False, coupled: bool = False,
        peephole: bool = False, second: int = 0, clip: float = 0.0,
    ) -> Sample:  # fmt: skip
        batch = sizes_of(shape, time_major)[0]
        ways = [
            cell(batch, shape[2], cells, project, coupled=coupled, peephole=peephole) for _ in WAYS
        ]
        args: list[Arg | None] = [Arg(shape), *ways[0][0], *ways[1][0], *ways[0][1], *ways[1][1]]
        args.append(Arg((*shape[:2], second)) if second else None)
        for _ in WAYS:
            args += [
                Arg((cells, second), const=True) if second and not (coupled and gate == 0) else None
                for gate in range(4)
            ]
        fields: dict[str, Any] = {
            "fused_activation_function": Activation.TANH.value, "time_major": time_major,
            "merge_outputs": merged, "cell_clip": clip,
        }  # fmt: skip
        return Sample(id, fields, tuple(args), accumulates=shape[2] + second + cells)

    return [
        case("apart", (2, 3, 5), 7),
        case("merged", (3, 2, 4), 5, time_major=True, merged=True, peephole=True, clip=0.4),
        case("second", (1, 3, 5), 6, second=3, merged=True, coupled=True, project=3),
    ]


OPS = (
    OpDef(
        OP, _parse, _infer, _reference, _samples, accuracy=Accuracy.ACCUMULATE, max_version=3,
        stateful=True, states=lambda attributes: (35, 36, 37, 38), work=_work,
        hybrid=_hybrid,
    ),
)  # fmt: skip
