"""What pays: decisions from made-up time models, and what nodes are estimated to take."""

from __future__ import annotations

import attrs
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tflgpu.compiler.machines import Cost, Machine, TimeModel
from tflgpu.compiler.partition import Partitioning, partition
from tflgpu.compiler.times import alone, costs_of, told
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node
from tflgpu.lowering.reason import ReasonCode
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.base import Fields, NoAttrs
from tflgpu.ops.registry import builtin_ops

US = 1e-6
#: Operators take a microsecond on the CPU and nothing on the device, but for what it takes to get
#: there: 10 us, and nothing for bytes.
HOST = Machine(launch=0, step=US, flop=0, few=0, byte=0, edge=0)
DEVICE = Machine(launch=10 * US, step=0, flop=0, few=0, byte=0, edge=0)
MODEL = TimeModel(DEVICE, HOST)


def supported(node: Node) -> Unsupported | None:
    """Ops that start with G run on the device."""
    return None if node.op.startswith("G") else Unsupported(f"{node.op} is for the CPU")


def chain(ops: str, elements: int = 4) -> Graph:
    """One op a letter, in a row."""
    graph = Graph()
    last = graph.add_value((elements,), DType.F32)
    graph.inputs.append(last)
    for at, op in enumerate(ops):
        made = graph.add_value((elements,), DType.F32)
        graph.add_node(op, NoAttrs(), [last], [made], origins=(at,))
        last = made
    graph.outputs.append(last)
    return graph


def chosen(ops: str, model: TimeModel = MODEL, **options: object) -> Partitioning:
    return partition(chain(ops), supported, {}, times=model, by_gain=True, **options)  # type: ignore[arg-type]


def sides(result: Partitioning) -> str:
    """A letter a node, in the order in which they run: D on the device, c on the CPU."""
    return "".join(("D" if p.delegated else "c") * len(p.nodes) for p in result.parts)


def test_what_pays_goes_to_the_device() -> None:
    result = chosen("G" * 11)
    assert sides(result) == "D" * 11
    (part,) = result.parts
    assert part.seconds == pytest.approx(10 * US)
    assert part.gain == pytest.approx(1 * US)
    assert part.costs == (Cost(0, US),) * 11


def test_what_does_not_pay_stays_on_the_cpu_with_both_times() -> None:
    result = chosen("G" * 9)
    assert sides(result) == "c" * 9
    assert {(r.reason, r.code) for r in result.refusals} == {
        ("part of 9 nodes: 10 us on the device, 9.0 us on the CPU (estimates)",
         ReasonCode.NOT_WORTH_IT),
    }  # fmt: skip


def test_without_by_gain_everything_goes() -> None:
    result = partition(chain("GGG"), supported, {}, times=MODEL)
    assert sides(result) == "DDD"
    assert result.parts[0].gain == pytest.approx(-7 * US)


def test_a_part_that_pays_is_kept_beside_one_that_does_not() -> None:
    result = chosen("G" * 20 + "C" + "GG")
    assert sides(result) == "D" * 20 + "ccc"
    assert {r.origins[0]: r.code for r in result.refusals} == {
        20: ReasonCode.UNSUPPORTED_FORM,
        21: ReasonCode.NOT_WORTH_IT,
        22: ReasonCode.NOT_WORTH_IT,
    }


def test_the_way_between_the_sides_counts() -> None:
    """16 bytes in and out of a part at 1 us a byte: the middle of a chain costs 32 us more."""
    model = TimeModel(attrs.evolve(DEVICE, edge=US), HOST)
    assert sides(chosen("C" + "G" * 41 + "C", model)) == "c" * 43
    assert sides(chosen("C" + "G" * 43 + "C", model)) == "c" + "D" * 43 + "c"
    # Where all of it goes, the model's own input and output still cross.
    assert sides(chosen("G" * 41, model)) == "c" * 41


def test_neighbours_on_the_cpu_become_one() -> None:
    """A call of the CPU takes 20 us: a part that saves 15 us by itself costs one more of these."""
    model = TimeModel(DEVICE, attrs.evolve(HOST, launch=20 * US))
    assert sides(chosen("C" + "G" * 25 + "C", model)) == "c" * 27
    assert sides(chosen("C" + "G" * 31 + "C", model)) == "c" + "D" * 31 + "c"
    # At the end of a model there is no call to save.
    assert sides(chosen("C" + "G" * 25, model)) == "c" + "D" * 25


def test_the_model_as_the_file_has_it_may_be_faster_on_the_cpu() -> None:
    result = chosen("G" * 30, alone=9 * US)
    assert sides(result) == "c" * 30
    assert {r.reason for r in result.refusals} == {
        "the model: 10 us with 30 nodes on the device, 9.0 us wholly on the CPU (estimates)"
    }


def test_the_last_part_is_held_against_the_model_as_the_file_has_it() -> None:
    """Which may take the CPU longer than the fewer nodes that the device would get."""
    assert sides(chosen("G" * 9, alone=12 * US)) == "D" * 9
    assert sides(chosen("C" + "G" * 9, alone=12 * US)) == "c" + "D" * 9
    assert sides(chosen("C" + "G" * 9, alone=10 * US)) == "c" * 10


def test_limits_of_the_options_come_first() -> None:
    result = chosen("G" * 20 + "C" + "G" * 30, max_partitions=1)
    assert sides(result) == "c" * 21 + "D" * 30
    assert {r.code for r in result.refusals} == {
        ReasonCode.MAX_PARTITIONS,
        ReasonCode.UNSUPPORTED_FORM,
    }
    few = chosen("G" + "C" + "G" * 30, min_nodes=2)
    assert {r.code for r in few.refusals} == {ReasonCode.MIN_NODES, ReasonCode.UNSUPPORTED_FORM}


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    figures = st.sampled_from([0.0, 1e-7, 1e-6, 1e-5])
    return Machine(*(draw(figures) for _ in range(6)))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    graph = Graph()
    graph.inputs.append(graph.add_value((4,), DType.F32))
    for at in range(draw(st.integers(1, 12))):
        reads = draw(st.lists(st.integers(0, at), min_size=1, max_size=2))
        size = draw(st.sampled_from([1, 7, 40]))
        inputs = [graph.values[r] for r in reads]
        out = graph.add_value((size,), DType.F32)
        graph.add_node(draw(st.sampled_from("GC")), NoAttrs(), inputs, [out], origins=(at,))
    read = {v.id for n in graph.nodes for v in n.inputs if v is not None}
    graph.outputs = [v for v in graph.values.values() if v.id not in read]
    return graph


@given(graphs(), machines(), machines())
@settings(max_examples=200, deadline=None)
def test_the_choice_is_never_worse_than_all_or_nothing(
    graph: Graph, device: Machine, host: Machine
) -> None:
    model = TimeModel(device, host)

    def total(result: Partitioning) -> float:
        return sum(part.seconds for part in result.parts)

    best = partition(graph, supported, {}, times=model, by_gain=True)
    everything = partition(graph, supported, {}, times=model)
    nothing = partition(graph, lambda node: Unsupported("no"), {}, times=model)
    assert total(best) <= min(total(everything), total(nothing)) + 1e-12
    assert alone(graph, {}, model) == pytest.approx(total(nothing))
    # The same question has the same answer.
    again = partition(graph, supported, {}, times=model, by_gain=True)
    assert sides(again) == sides(best)
    for before, after in zip(best.parts, best.parts[1:], strict=False):
        assert before.delegated != after.delegated


OPS = builtin_ops()


def real(op: str, graph: Graph, *inputs: object, **fields: object) -> Node:
    attributes = OPS[op].parse(Fields(op, fields))
    made = graph.add_value((1, 8, 8, 4), DType.F32)
    return graph.add_node(op, attributes, inputs, [made])  # type: ignore[arg-type]


class TestCosts:
    MODEL = TimeModel(
        Machine(launch=1, step=100, flop=1, few=10, byte=0, edge=0),
        Machine(launch=1, step=7, flop=2, few=3, byte=0.5, edge=0),
    )

    def costs(self, graph: Graph) -> list[Cost]:
        found = costs_of(graph, OPS, self.MODEL, {id(n) for n in graph})
        return [found[id(node)] for node in graph]

    def test_products_and_windows_have_rates_of_their_own(self) -> None:
        graph = Graph()
        x = graph.add_value((1, 8, 8, 4), DType.F32)
        graph.inputs.append(x)
        strides = {"stride_h": 1, "stride_w": 1, "padding": 0}
        wide = graph.add_const(np.zeros((4, 3, 3, 4), np.float32))
        real("CONV_2D", graph, x, wide, None, **strides)
        deep = graph.add_const(np.zeros((1, 3, 3, 4), np.float32))
        real("DEPTHWISE_CONV_2D", graph, x, deep, None, depth_multiplier=1, **strides)
        results, taps = 256, 9
        conv, depthwise = 2 * results * taps * 4, 2 * results * taps
        assert self.costs(graph) == [
            Cost(100 + conv * 1, 7 + conv * 2),
            Cost(100 + depthwise * 10, 7 + depthwise * 3),
        ]

    def test_what_joins_a_kernel_or_is_a_view_takes_no_dispatch(self) -> None:
        graph = Graph()
        x = graph.add_value((1, 8, 8, 4), DType.F32)
        graph.inputs.append(x)
        pool = {"stride_h": 1, "stride_w": 1, "filter_height": 2, "filter_width": 2, "padding": 0}
        first = real("MAX_POOL_2D", graph, x, **pool)
        second = real("RELU", graph, first.outputs[0])
        third = real("RESHAPE", graph, second.outputs[0], graph.add_const(np.zeros(4, np.int32)))
        real("RELU", graph, third.outputs[0])  # a view makes no kernel that it could join
        nbytes, results = 2 * 1024, 256
        step = Cost(100 + results * 10, 7 + max(results * 3, nbytes * 0.5))
        window = 4
        assert self.costs(graph)[0] == Cost(100 + window * results * 10, 7 + window * results * 3)
        assert self.costs(graph)[1] == Cost(results * 10, step.host)
        assert self.costs(graph)[2].device == 0
        assert self.costs(graph)[3] == step
        # Read by somebody else too, its operand has to be stored, so it has a kernel.
        real("NEG", graph, first.outputs[0])
        assert self.costs(graph)[1] == step

    def test_a_view_is_no_more_than_a_call_on_the_cpu(self) -> None:
        graph = Graph()
        x = graph.add_value((1, 8, 8, 4), DType.F32)
        real("RESHAPE", graph, x, graph.add_const(np.zeros(4, np.int32)))
        assert self.costs(graph) == [Cost(0, 7)]

    def test_of_a_table_the_rows_that_are_taken_are_read(self) -> None:
        """A table of words has a thousand times as many rows as a sentence has words."""
        graph = Graph()
        table = graph.add_const(np.zeros((10_000, 16), np.float32))
        words = graph.add_value((16,), DType.I32)
        graph.inputs.append(words)
        real("GATHER", graph, table, words, axis=0, batch_dims=0)
        (cost,) = self.costs(graph)
        made, indices = 1024, 64
        assert cost.host == 7 + max(256 * 3, (2 * made + indices) * 0.5)

    def test_a_maximum_reads_all_that_it_chooses_from(self) -> None:
        graph = Graph()
        x = graph.add_value((1, 64, 64, 64), DType.F32)
        graph.inputs.append(x)
        axes = graph.add_const(np.array([1, 2], np.int32))
        real("REDUCE_MAX", graph, x, axes, keep_dims=False)
        assert self.costs(graph)[0].host >= x.nbytes * 0.5

    def test_what_is_worked_out_of_constants_takes_nothing(self) -> None:
        graph = Graph()
        real("DEQUANTIZE", graph, graph.add_const(np.zeros((1, 8, 8, 4), np.float16)))
        assert self.costs(graph) == [Cost(0, 0)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 us"), (2.14e-7, "0.2 us"), (9.96e-6, "10.0 us"), (2.1e-4, "210 us"),
     (1.4e-3, "1.4 ms"), (0.0444, "44 ms"), (2.34, "2.34 s")],
)  # fmt: skip
def test_times_in_words(seconds: float, text: str) -> None:
    assert told(seconds) == text
