"""What is written and read again is the same; deep trees too; what cannot be written is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.cache import whole_file
from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.parts import Compiled
from tflgpu.compiler.plan import OutputRef, Plan, PlannedDispatch, PlannedIO
from tflgpu.compiler.report_of import report_of
from tflgpu.compiler.target import Target
from tflgpu.errors import SavedModelError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.same import same
from tflgpu.language.tree import Binary, Const, Expr, Kernel, KernelBuffer, Store
from tflgpu.language.types import F32, I32, Scalar
from tflgpu.language.walk import walk
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.registry import builtin_ops
from tflgpu.saved.key import key_of
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.saved.saved_models import (
    FACTS,
    compiled_small,
    convolved,
    graph_of,
    target_of,
    through_bytes,
)


def test_a_compiled_model_comes_back() -> None:
    graph, compiled, key = compiled_small(convolved())
    found = through_bytes(compiled, graph, key)
    assert found.graph.dump() == compiled.graph.dump()
    assert report_of(graph, found) == report_of(graph, compiled)
    (before,), (after,) = compiled.plans, found.plans
    for mine, theirs in zip(after.constants, before.constants, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype
        assert not mine.flags.writeable
    plain = [attrs.evolve(d, kernel=None) for d in before.dispatches]
    assert [attrs.evolve(d, kernel=None) for d in after.dispatches] == plain
    for mine, theirs in zip(after.dispatches, before.dispatches, strict=True):
        assert same(mine.kernel, theirs.kernel)
    assert (after.arenas, after.alignment, after.inputs, after.outputs) == (
        before.arenas, before.alignment, before.inputs, before.outputs,
    )  # fmt: skip


def test_what_was_one_object_is_one_again() -> None:
    """Sessions and partitions go by identity."""
    graph, compiled, key = compiled_small(convolved())
    found = through_bytes(compiled, graph, key)
    nodes = {id(node) for node in found.graph.nodes}
    values = {id(value) for value in found.graph.values.values()}
    for part in found.parts:
        assert {id(node) for node in part.nodes} <= nodes
        assert {id(value) for value in (*part.inputs, *part.outputs)} <= values
    assert {id(v) for v in (*found.graph.inputs, *found.graph.outputs)} <= values


def test_a_kernel_that_is_used_twice_is_written_once() -> None:
    tensors = [TensorSpec(name, (1, 4, 4, 8)) for name in "xyz"]
    pool = {"padding": 1, "stride_w": 1, "stride_h": 1, "filter_width": 1, "filter_height": 1}
    operators = [OperatorSpec("MAX_POOL_2D", pool, (i,), (i + 1,)) for i in range(2)]
    model = write_model(ModelSpec(tensors, operators, (0,), (2,)))
    graph, target = graph_of(model), target_of(passes=())
    compiled = compile_graph(graph, target)
    kernels = [d.kernel for plan in compiled.plans for d in plan.dispatches]
    assert len(kernels) == 2
    assert kernels[0] is kernels[1]
    found = through_bytes(compiled, graph, key_of(graph, target, FACTS))
    kernels = [d.kernel for plan in found.plans for d in plan.dispatches]
    assert kernels[0] is kernels[1]


def test_constants_of_the_model_are_not_written_again() -> None:
    graph, compiled, key = compiled_small(convolved())
    found = through_bytes(compiled, graph, key)
    own = {id(value.data) for value in graph.values.values() if value.data is not None}
    kept = {id(v.data) for v in compiled.graph.values.values() if id(v.data) in own}
    assert kept
    assert kept <= {id(value.data) for value in found.graph.values.values()}


def deep(levels: int) -> Compiled:
    """A model of one kernel, whose expression is as deep as that."""
    total: Expr = Const(F32, 0.0)
    for i in range(levels):
        total = Binary(F32, "add", total, Const(F32, float(i)))
    out = KernelBuffer("out", Scalar.F32, 1, "write")
    kernel = Kernel("deep", (1, 1, 1), (out,), (), (Store(out, Const(I32, 0), total),))
    dispatch = PlannedDispatch(kernel, (1, 1, 1), (OutputRef(0),), "deep")
    plan = Plan((), 64, (), (), (PlannedIO("y", (1,), DType.F32, 4),), (dispatch,))
    _, compiled, _ = compiled_small(convolved())
    part = attrs.evolve(compiled.parts[0], plan=plan)
    return attrs.evolve(compiled, parts=(part,))


def test_a_deep_expression_is_no_trouble() -> None:
    graph, _, key = compiled_small(convolved())
    found = through_bytes(deep(5_000), graph, key)
    (plan,) = found.plans
    (store,) = plan.dispatches[0].kernel.body
    assert len(walk(store).order) == 10_002


def test_numbers_keep_their_bits_and_kinds() -> None:
    graph, compiled, key = compiled_small(convolved())
    odd = (1, True, 1.0, -0.0, float("nan"), float("inf"), 2**31, -(2**63), 1 << 70, "", "é\ud800")
    marked = [attrs.evolve(graph.nodes[0], attrs=(*odd, (1, 2), (1.0, 2.0), [1], None, b"ab"))]
    part = attrs.evolve(compiled.parts[0], nodes=tuple(marked), plan=None, delegated=False)
    found = through_bytes(attrs.evolve(compiled, parts=(part,)), graph, key)
    values = found.parts[0].nodes[0].attrs
    assert repr(values) == repr((*odd, (1, 2), (1.0, 2.0), [1], None, b"ab"))


def test_arrays_keep_shape_type_and_contents() -> None:
    arrays = (
        np.zeros((0, 3), np.float32), np.array(2.5, np.float16), np.array([[True, False]]),
        np.arange(6, dtype=">i4").reshape(2, 3)[:, ::2], np.array([1 + 2j], np.complex64),
        np.array([-0.0, np.nan], np.float64), np.float32(0.1), np.dtype(np.uint8),
    )  # fmt: skip
    graph, compiled = with_attributes(arrays)
    _, _, key = compiled_small(convolved())
    found = through_bytes(compiled, graph, key).parts[0].nodes[0].attrs
    for mine, theirs in zip(found[:6], arrays[:6], strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype.newbyteorder("="))
        np.testing.assert_array_equal(mine, theirs)
    assert found[6:] == arrays[6:]
    assert type(found[6]) is np.float32


def test_every_shipped_op_can_be_saved() -> None:
    """Attributes of all kinds, quantized tensors, parts on the CPU."""
    import tflgpu.conformance.samples as samples

    target = Target.plain(DeviceCaps(), Precision.F32)
    saved = 0
    for op in builtin_ops().values():
        for sample in op.samples()[:1]:
            graph = samples.materialize(op, sample).graph
            compiled = compile_graph(graph, target)
            found = through_bytes(compiled, graph, key_of(graph, target, FACTS))
            assert found.graph.dump() == compiled.graph.dump()
            assert report_of(graph, found) == report_of(graph, compiled)
            for mine, theirs in zip(found.plans, compiled.plans, strict=True):
                assert len(mine.dispatches) == len(theirs.dispatches)
            saved += 1
    assert saved > 100


def test_parts_on_the_cpu_and_reasons() -> None:
    def objection(node: object) -> Unsupported | None:
        return Unsupported("not today") if getattr(node, "op", "") == "FULLY_CONNECTED" else None

    graph, target = graph_of(convolved()), target_of(objection=objection)
    compiled = compile_graph(graph, target)
    found = through_bytes(compiled, graph, key_of(graph, target, FACTS))
    assert [part.delegated for part in found.parts] == [True, False]
    assert found.refusals == compiled.refusals
    assert found.on_cpu(0, "it did not load").plans == ()


class Foreign:
    """Of no class that a file may have."""


def with_attributes(attributes: object) -> tuple[Graph, Compiled]:
    graph, compiled, _ = compiled_small(convolved())
    node = attrs.evolve(compiled.graph.nodes[0], attrs=attributes)
    part = attrs.evolve(compiled.parts[0], nodes=(node,), plan=None)
    return graph, attrs.evolve(compiled, parts=(part,))


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        (Foreign(), "Foreign"),
        (lambda: 1, "function"),
        ({(1, 2): 3}, "neither"),
        (np.array([Foreign()]), "ndarray"),
    ],
)
def test_what_files_cannot_have_is_refused(attributes: object, says: str) -> None:
    graph, compiled = with_attributes(attributes)
    _, _, key = compiled_small(convolved())
    with pytest.raises(SavedModelError, match=says):
        through_bytes(compiled, graph, key)


def test_a_value_that_is_part_of_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    graph, compiled = with_attributes(loop)
    _, _, key = compiled_small(convolved())
    with pytest.raises(SavedModelError, match="part of itself"):
        through_bytes(compiled, graph, key)


def test_a_model_whose_rule_failed_is_not_saved() -> None:
    graph, compiled, key = compiled_small(convolved())
    broken = attrs.evolve(compiled, broken_rules={("p", "ADD", "r"): "it raised"})
    with pytest.raises(SavedModelError, match="it raised"):
        through_bytes(broken, graph, key)


def test_what_was_read_can_be_saved_again() -> None:
    graph, compiled, key = compiled_small(convolved())
    once = through_bytes(compiled, graph, key)
    twice = through_bytes(once, graph, key)
    kernels = [[d.kernel for plan in c.plans for d in plan.dispatches] for c in (compiled, twice)]
    before, after = kernels
    assert len(before) == len(after)
    assert all(map(same, before, after))


# Names that stand for something else than a file of one's own.


#: The demo's model.
MODEL = Path(tflgpu.__file__).parent / "demo" / "digits.tflite"


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    """Nor is a device: who may write to /dev would have a file in the place of /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="is no file"):
        whole_file.write(pipe, [b"x"])
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    whole_file.write(tmp_path / "file", [b"x"])
    assert (tmp_path / "file").read_bytes() == b"x"


def test_a_link_is_named_as_what_it_is(tmp_path: Path) -> None:
    whole_file.write(tmp_path / "file", [b"x"])
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="it is a symbolic link"):
        whole_file.opened(tmp_path / "link")


@pytest.mark.parametrize("name", ["a\0b", "link", "pipe"])
def test_delegates_refuse_them(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    path = str(tmp_path / name)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, saved=path) as delegate,
        tflgpu.Interpreter(str(MODEL), experimental_delegates=[delegate]) as interpreter,
        pytest.raises(tflgpu.SavedModelError, match="cannot be used: "),
    ):
        interpreter.allocate_tensors()
    if name != "link":
        with (
            tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
            pytest.raises(tflgpu.SavedModelError, match="cannot be written: "),
        ):
            delegate.save(str(MODEL), path)
