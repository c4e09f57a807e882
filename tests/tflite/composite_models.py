"""Models of one composite, written out as converters do, and their results by LiteRT and here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tflgpu
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from flatbuffers import flexbuffers
from tflgpu.compiler.report import DelegationReport
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, outputs


class Body:
    """A decomposition, written operator by operator; tensors are their indices."""

    def __init__(self) -> None:
        self.tensors: list[TensorSpec] = []
        self.operators: list[OperatorSpec] = []
        self.inputs: list[int] = []

    def _tensor(self, shape: Sequence[int], dtype: DType, data: Any = None) -> int:
        self.tensors.append(TensorSpec(f"t{len(self.tensors)}", tuple(shape), dtype, data))
        return len(self.tensors) - 1

    def given(self, shape: Sequence[int], dtype: DType = DType.F32) -> int:
        """An operand of the composite."""
        self.inputs.append(self._tensor(shape, dtype))
        return self.inputs[-1]

    def const(self, data: Any, dtype: DType = DType.F32) -> int:
        array = np.asarray(data, dtype.numpy)
        return self._tensor(array.shape, dtype, array)

    def ints(self, *data: int) -> int:
        return self.const(data, DType.I32)

    def shape(self, tensor: int) -> tuple[int, ...]:
        return self.tensors[tensor].shape

    def op(
        self, name: str, inputs: Sequence[int], shape: Sequence[int], dtype: DType = DType.F32,
        **fields: Any,
    ) -> int:  # fmt: skip
        """An operator; its result."""
        made = self._tensor(shape, dtype)
        self.operators.append(OperatorSpec(name, fields, list(inputs), [made]))
        return made

    def same(self, name: str, *inputs: int, **fields: Any) -> int:
        """An operator whose result is as its operands, broadcast."""
        shape = np.broadcast_shapes(*(self.shape(i) for i in inputs))
        return self.op(name, inputs, shape, self.tensors[inputs[0]].dtype, **fields)

    def mean(self, x: int, *axes: int) -> int:
        shape = list(self.shape(x))
        for axis in axes:
            shape[axis] = 1
        return self.op("MEAN", [x, self.ints(*axes)], shape, keep_dims=True)

    def reshape(self, x: int, *shape: int) -> int:
        return self.op("RESHAPE", [x, self.ints(*shape)], shape, self.tensors[x].dtype)

    def transpose(self, x: int, *order: int) -> int:
        shape = [self.shape(x)[a] for a in order]
        return self.op("TRANSPOSE", [x, self.ints(*order)], shape, self.tensors[x].dtype)

    def matmul(self, a: int, b: int, *, adj_y: bool = False) -> int:
        shape = (*self.shape(a)[:-1], self.shape(b)[-2 if adj_y else -1])
        return self.op("BATCH_MATMUL", [a, b], shape, adj_y=adj_y)

    def slice(self, x: int, begin: Sequence[int], size: Sequence[int]) -> int:
        return self.op("SLICE", [x, self.ints(*begin), self.ints(*size)], size)


def model(
    name: str, attributes: Mapping[str, Any], body: Body, outputs: Sequence[int],
    constants: Mapping[int, Any] | None = None, version: int = 0,
) -> bytes:  # fmt: skip
    """A model of one composite, whose operands are its inputs but for ``constants``, by
    position."""
    fixed = {} if constants is None else dict(constants)
    tensors: list[TensorSpec] = []
    for place, index in enumerate(body.inputs):
        spec = body.tensors[index]
        tensors.append(TensorSpec(f"in{place}", spec.shape, spec.dtype, fixed.get(place)))
    results = [
        TensorSpec(f"out{n}", body.tensors[i].shape, body.tensors[i].dtype)
        for n, i in enumerate(outputs)
    ]
    count = len(tensors)
    fields = {
        "name": name, "decomposition_subgraph_index": 1, "version": version,
        "composite_attributes": tuple(flexbuffers.Dumps(dict(attributes))),
    }  # fmt: skip
    made = list(range(count, count + len(results)))
    whole = OperatorSpec("STABLEHLO_COMPOSITE", fields, list(range(count)), made)
    graph = SubgraphSpec(body.tensors, body.operators, body.inputs, list(outputs))
    free = [i for i in range(count) if i not in fixed]
    return write_model(ModelSpec([*tensors, *results], [whole], free, made, subgraphs=[graph]))


def _run(interpreter: Any, arrays: Sequence[Array]) -> list[Array]:
    allocate_and_run(interpreter, arrays)
    return outputs(interpreter)


def by_litert(content: bytes, arrays: Sequence[Array]) -> list[Array]:
    """LiteRT's results, by its own kernels."""
    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    return _run(Interpreter(model_content=content, experimental_op_resolver_type=plain), arrays)


def as_operators(content: bytes, arrays: Sequence[Array]) -> list[Array]:
    """The results of the references of what it is made of."""
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=[], cpu_backend="cpu_ref"
    ) as interpreter:
        results = _run(interpreter, arrays)
        assert not interpreter.report.composites
        return results


def here(
    content: bytes,
    arrays: Sequence[Array],
    backend: str = "cpu_ref",
    device: int = 1,
    **options: Any,
) -> tuple[list[Array], DelegationReport]:
    """A device's results, and its report."""
    with (
        tflgpu.GpuDelegate(backend=backend, device=device, **options) as delegate,
        tflgpu.Interpreter(
            model_content=content, experimental_delegates=[delegate], cpu_backend="cpu_ref"
        ) as interpreter,
    ):
        results = _run(interpreter, arrays)
        return results, interpreter.report


def drawn(content: bytes, seed: int = 1) -> list[Array]:
    """Numbers for the inputs: floats in [-2, 2), whole numbers of 0."""
    rng = np.random.default_rng(seed)
    interpreter = Interpreter(model_content=content)
    return [
        rng.uniform(-2, 2, d["shape"]).astype(d["dtype"])
        if np.dtype(d["dtype"]).kind == "f"
        else np.zeros(d["shape"], d["dtype"])
        for d in interpreter.get_input_details()
    ]


def became(report: DelegationReport) -> list[tuple[str, str]]:
    """The op of each composite, or why there is none."""
    return [(c.op, c.reason) for c in report.composites]
