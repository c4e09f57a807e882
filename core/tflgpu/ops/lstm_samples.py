"""Test cases of the LSTM ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflgpu.ops.base import Activation, Arg, Sample
from tflgpu.ops.recurrent import sizes_of


def basic_samples() -> list[Sample]:
    """LSTM with the basic kernel."""
    return [
        _basic("basic", 1, 7, 4),
        _basic("basic_odd", 3, 5, 7),
        _basic("basic_aligned", 2, 8, 16),
        _basic("basic_one", 1, 1, 1),
        _basic("basic_wide", 1, 67, 36),
    ]


def _basic(id: str, batch: int, inputs: int, units: int) -> Sample:
    fields = {"kernel_type": 1, "fused_activation_function": Activation.TANH.value}
    args = (
        Arg((batch, inputs)),
        Arg((batch, units)),
        Arg((4 * units, inputs + units), const=True),
        Arg((4 * units,), const=True),
        Arg((batch, units)),
    )
    return Sample(id, fields, args, version=2, accumulates=inputs + units)


#: On a device each is a kernel of its own in every precision. Those that differ most are for all
#: backends; the others are held against LiteRT (`tests/ops/test_recurrent.py`).
_FULL = frozenset({"full", "full_coupled", "full_clipped", "full_everything"})
_SEQUENCES = frozenset(
    {
        "plain", "batch", "time_major", "coupled_peephole", "norm_coupled", "norm_one",
        "everything", "relu",
    }
)  # fmt: skip


def full_samples() -> list[Sample]:
    """LSTM with the full kernel."""
    return [sample for sample in every_full() if sample.id in _FULL]


def sequence_samples() -> list[Sample]:
    """UNIDIRECTIONAL_SEQUENCE_LSTM."""
    return [sample for sample in every_sequence() if sample.id in _SEQUENCES]


def every_full() -> Sequence[Sample]:
    """All options of LSTM with the full kernel."""

    def case(id: str, batch: int, inputs: int, cells: int, **more: Any) -> Sample:
        return _case(id, (batch, inputs), cells, {"kernel_type": 0}, 4, **more)

    return [
        case("full", 2, 5, 7),
        case("full_coupled", 1, 5, 6, coupled=True),
        case("full_peephole", 2, 3, 5, peephole=True),
        case("full_projection", 2, 5, 7, project=3),
        case("full_clipped", 3, 4, 8, project=5, cell_clip=0.4, proj_clip=0.3),
        case("full_norm", 2, 6, 9, norm=True),
        case("full_everything", 2, 5, 7, project=3, peephole=True, norm=True, cell_clip=0.5),
    ]


def every_sequence() -> Sequence[Sample]:
    """All options of UNIDIRECTIONAL_SEQUENCE_LSTM."""

    def case(
        id: str,
        batch: int,
        time: int,
        inputs: int,
        cells: int,
        *,
        time_major: bool = False,
        **more: Any,
    ) -> Sample:
        shape = (time, batch, inputs) if time_major else (batch, time, inputs)
        return _case(id, shape, cells, {"time_major": time_major}, 3, **more)

    return [
        case("plain", 1, 5, 7, 4),
        case("batch", 3, 4, 5, 7),
        case("time_major", 2, 5, 3, 6, time_major=True),
        case("one_step", 2, 1, 5, 5),
        case("coupled", 2, 3, 4, 5, coupled=True),
        case("peephole", 1, 4, 5, 3, peephole=True),
        case("coupled_peephole", 2, 3, 5, 3, peephole=True, coupled=True),
        case("projection", 2, 3, 5, 7, project=2),
        case("clipped", 2, 5, 4, 6, cell_clip=0.3, project=5, proj_clip=0.2),
        case("norm", 2, 3, 5, 7, norm=True),
        case("norm_coupled", 2, 3, 5, 7, norm=True, coupled=True),
        case("everything", 2, 3, 5, 7, project=3, peephole=True, norm=True, cell_clip=0.5),
        case("relu", 1, 4, 5, 6, activation=Activation.RELU),
        case("diagonal", 2, 3, 4, 6, diagonal=True, peephole=True),
        case("diagonal_coupled", 3, 2, 5, 7, diagonal=True, coupled=True, time_major=True),
        case("no_bias_of_projection", 1, 3, 4, 6, project=3, projection_bias=False),
        case("norm_one", 2, 3, 5, 1, norm=True),  # no variance: only the epsilon is left
    ]


def both_samples() -> list[Sample]:
    """BIDIRECTIONAL_SEQUENCE_LSTM."""

    def case(
        id: str,
        shape: tuple[int, int, int],
        cells: int,
        *,
        second: int = 0,
        time_major: bool = False,
        merged: bool = False,
        clip: float = 0.0,
        **more: Any,
    ) -> Sample:
        batch = sizes_of(shape, time_major)[0]
        weights, states, _ = _cell(batch, shape[2], cells, **more)
        args: list[Arg | None] = [Arg(shape), *weights, *weights, *states, *states]
        args.append(Arg((*shape[:2], second)) if second else None)
        args += [
            Arg((cells, second), const=True) if second and a else None for a in weights[:4]
        ] * 2
        fields: dict[str, Any] = {
            "fused_activation_function": Activation.TANH.value,
            "time_major": time_major,
            "merge_outputs": merged,
            "cell_clip": clip,
        }
        return Sample(id, fields, tuple(args), accumulates=shape[2] + second + cells)

    return [
        case("apart", (2, 3, 5), 7),
        case("merged", (3, 2, 4), 5, time_major=True, merged=True, peephole=True, clip=0.4),
        case("second", (1, 3, 5), 6, second=3, merged=True, coupled=True, project=3),
    ]


def _case(
    id: str,
    shape: tuple[int, ...],
    cells: int,
    fields: dict[str, Any],
    version: int,
    *,
    cell_clip: float = 0.0,
    proj_clip: float = 0.0,
    activation: Activation = Activation.TANH,
    **more: Any,
) -> Sample:
    """A case of one direction; ``more`` is what `_cell` takes."""
    batch = sizes_of(shape, fields.get("time_major", False))[0]
    weights, states, norms = _cell(batch, shape[-1], cells, **more)
    options = {
        **fields,
        "fused_activation_function": activation.value,
        "cell_clip": cell_clip,
        "proj_clip": proj_clip,
    }
    if more.get("diagonal"):
        options["diagonal_recurrent_tensors"] = True
    args = (Arg(shape), *weights, *states, *norms)
    accumulates = shape[-1] + (more.get("project") or cells)
    return Sample(id, options, args, version=version, accumulates=accumulates)


def _cell(
    batch: int,
    inputs: int,
    cells: int,
    *,
    coupled: bool = False,
    peephole: bool = False,
    norm: bool = False,
    project: int = 0,
    projection_bias: bool = True,
    diagonal: bool = False,
) -> tuple[list[Arg | None], list[Arg], list[Arg | None]]:
    """Weights, states and layer norms of a cell."""
    outputs = project or cells

    def weights(*size: int, when: bool = True) -> Arg | None:
        return Arg(size, const=True) if when else None

    def gates(*size: int, when: bool = True) -> list[Arg | None]:
        return [weights(*size, when=when and not (coupled and gate == 0)) for gate in range(4)]

    constants = [
        *gates(cells, inputs),
        *(gates(cells) if diagonal else gates(cells, outputs)),
        weights(cells, when=peephole and not coupled),
        weights(cells, when=peephole),
        weights(cells, when=peephole),
        *gates(cells),
        weights(outputs, cells, when=project > 0),
        weights(outputs, when=project > 0 and projection_bias),
    ]
    states = [Arg((batch, size), variable=True) for size in (outputs, cells)]
    return constants, states, gates(cells, when=norm)
