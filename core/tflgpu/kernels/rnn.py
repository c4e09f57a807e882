"""RNN and the sequence RNNs: two dispatches a direction, for all steps (`kernels/recurrent.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.kernels.accept import FLOATS, takes
from tflgpu.kernels.activation import activate
from tflgpu.kernels.both_ways import Directions
from tflgpu.kernels.recurrent import (
    Product,
    Steps,
    Team,
    input_sums,
    members,
    multiply,
    not_constant,
    not_shared,
    pack_matrices,
    seen,
    slices_of,
    without_padding,
)
from tflgpu.language.builder import Builder
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import WriteView
from tflgpu.ops.both_ways import sizes_of
from tflgpu.ops.rnn import BACKWARD, FORWARD, SECOND, SECOND_WEIGHTS, Rnn

_ROOMS = 2  # vectors that a step keeps: the hidden state, and the sums


def _run(
    low: Lowering,
    places: Sequence[int],
    steps: Steps,
    products: Sequence[Product],
    write: Callable[[Builder], WriteView],
) -> None:
    """One direction."""
    attributes: Rnn = low.attrs
    recurrent, bias, state = places[1:]
    sums = input_sums(low, products, [_const(low.node, bias)])
    units = low.node.input(state).shape[1]
    slices = slices_of(units)
    k = low.kernel("rnn_steps", (members(low.caps, slices), 1, 1))
    given, out = low.read_temp(k, sums, "sums"), write(k)
    weights = low.weights(k, pack_matrices([_const(low.node, recurrent)]), "recurrent")
    team = Team.of(k)
    hidden, room = team.room("hidden", slices), team.room("totals", slices)
    team.fetch(hidden, low.read_value(k, low.node.input(state), "old"), units)
    k.barrier()
    with k.loop(0, steps.times, name="time") as time:
        row = steps.row(k, team.sequence, time)
        load = seen(k, hidden, slices, attributes.rounding if attributes.rounds else None)
        with team.share(slices, "c") as c:
            total = k.var(given.load(row, c), "total")
            multiply(k, total, load, slices, weights, c, slices)
            k.store_shared(room, c, total)
        k.barrier()
        with team.share(slices, "c") as c:
            value = activate(k, attributes.activation, k.let(k.load_shared(room, c), "sum"))
            value = k.let(without_padding(k, value, c, units), "value")
            k.store_shared(hidden, c, value)
            out.store(row, c, value)
        k.barrier()
    team.keep(hidden, low.new_state(k, state), units)
    low.dispatch_groups(k, (steps.batch, 1, 1))


def _const(node: Node, index: int) -> Array:
    return np.asarray(node.const(index))


def _build(low: Lowering) -> None:
    attributes: Rnn = low.attrs
    shape = low.node.input(0).shape
    batch, times = (shape[0], 1) if len(shape) == 2 else sizes_of(shape, attributes.time_major)
    product = Product(0, [_const(low.node, FORWARD[0])])
    _run(low, FORWARD, Steps(batch, times, attributes.time_major), [product], low.write)


def _build_both(low: Lowering) -> None:
    node = low.node
    ways = Directions(low, [node.input(p[3]).shape[1] for p in (FORWARD, BACKWARD)])
    for backward, places in enumerate((FORWARD, BACKWARD)):
        extra = node.optional_input(SECOND_WEIGHTS[backward])
        products = [Product(0, [_const(node, places[0])])]
        if extra is not None:
            products.append(Product(SECOND, [_const(node, SECOND_WEIGHTS[backward])]))
        _run(low, places, ways.steps(backward), products, ways.write(backward))
    ways.merge()


def _accepts(node: Node, site: Site) -> str | None:
    both = node.op == "BIDIRECTIONAL_SEQUENCE_RNN"
    ways = (FORWARD, BACKWARD) if both else (FORWARD,)
    weights = [i for places in ways for i in places[:3]] + list(SECOND_WEIGHTS if both else ())
    names = ["weights"] * len(node.inputs)
    slices = max(slices_of(node.input(places[3]).shape[1]) for places in ways)
    return (
        takes(FLOATS)(node, site)
        or not_constant(node, weights, names)
        or not_shared(node.op, _ROOMS * slices, site)
    )


RULES = (
    KernelRule("RNN", "through time", _build, _accepts, keeps_state=True),
    KernelRule("UNIDIRECTIONAL_SEQUENCE_RNN", "through time", _build, _accepts, keeps_state=True),
    KernelRule(
        "BIDIRECTIONAL_SEQUENCE_RNN", "through time", _build_both, _accepts, fuses=False,
        keeps_state=True,
    ),
)  # fmt: skip
