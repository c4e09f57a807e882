"""What is read of LiteRT's C structs against what the file reader reads of the same model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflgpu.conformance.samples import materialize
from tflgpu.hosts.callbacks import Native, Nodes, Preview, Runs
from tflgpu.hosts.params import STRUCTS, has_no_options, struct_of, tensor_type
from tflgpu.hosts.reading import HostGraph, read_context
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.ops.base import OpDef
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.model_file import SubgraphInfo
from tflgpu.tflite.read import read_model
from tflgpu.tflite.schema import BUILTIN_CODES, default_fields, options_of
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.hosts.host_models import litert, samples_model
from tests.small_models import small_model
from tests.tflite import samples


class Spy:
    """A delegate that takes nothing and keeps what it saw."""

    def __init__(self) -> None:
        self.graphs: list[HostGraph] = []
        self.native = Native(self)

    def _get_native_delegate_pointer(self) -> int:
        return self.native.pointer

    def choose(self, context: Any, preview: Preview) -> Mapping[Nodes, Runs]:
        self.graphs.append(read_context(context))
        return {}


#: Constants that were read are views of the interpreters' memory.
_alive: list[Any] = []


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    _alive.clear()


def seen(content: bytes, **options: Any) -> list[HostGraph]:
    """Each subgraph as LiteRT hands it to a delegate."""
    spy = Spy()
    interpreter = litert.Interpreter(
        model_content=content,
        experimental_delegates=[spy],
        experimental_op_resolver_type=litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        **options,
    )
    _alive.append(interpreter)
    return spy.graphs


#: Fields that LiteRT does not keep, because no kernel of its asks for them.
NOT_KEPT = {("FullyConnectedOptions", "quant_spec")}


def compare(found: HostGraph, wanted: SubgraphInfo) -> set[str]:
    """Everything read of a graph; the names of its operators."""
    # Some of LiteRT's kernels add tensors of their own when they are made.
    assert len(found.tensors) >= len(wanted.tensors)
    for ours, file in zip(found.tensors, wanted.tensors, strict=False):
        assert (ours.index, ours.name, ours.dtype) == (file.index, file.name, file.dtype)
        assert ours.shape == file.shape
        assert ours.shape_signature == file.shape_signature
        assert ours.is_variable == file.is_variable
        if file.sparsity is not None:
            assert ours.data is None
        elif file.data is None or file.dtype is DType.STRING:
            np.testing.assert_array_equal(ours.data, file.data)
        else:
            assert ours.data is not None
            assert (ours.data.shape, ours.data.dtype) == (file.data.shape, file.data.dtype)
            assert ours.data.tobytes() == file.data.tobytes()
        if file.quantization is None:
            assert ours.quantization is None
        else:
            assert ours.quantization is not None
            np.testing.assert_array_equal(
                np.float32(ours.quantization.scale), np.float32(file.quantization.scale)
            )
            assert ours.quantization.zero_point == file.quantization.zero_point
            assert ours.quantization.axis == file.quantization.axis
    assert list(found.operators) == [op.index for op in wanted.operators]
    for file in wanted.operators:
        ours = found.operators[file.index]
        for name in ("name", "is_custom", "version", "inputs", "outputs", "custom_options"):
            assert getattr(ours, name) == getattr(file, name), (file.name, name)
        if "are not read" in found.unreadable.get(file.index, ""):
            assert ours.fields == {}
            continue
        table = options_of(file.name) if file.name in BUILTIN_CODES else None
        named = table.table if table is not None else ""
        kept = {k: v for k, v in file.fields.items() if (named, k) not in NOT_KEPT}
        assert _plain(ours.fields) == _plain(kept), file.name
    return {op.name for op in wanted.operators if op.index not in found.unreadable}


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {k: np.float32(v) if isinstance(v, float) else v for k, v in fields.items()}


#: Options that are in no struct listed, since LiteRT's says less than the schema (how many numbers
#: of a padding count) or more (the subgraph that merges elements): these operators stay with LiteRT
#: there.
NOT_READ = frozenset({
    "REDUCE_WINDOW", "STABLEHLO_BROADCAST_IN_DIM", "STABLEHLO_GATHER", "STABLEHLO_PAD",
    "STABLEHLO_REDUCE_WINDOW", "STABLEHLO_SCATTER",
})  # fmt: skip
#: Operators of which LiteRT's interpreter has no kernel.
NOT_IN_LITERT = frozenset({"STABLEHLO_CBRT", "STABLEHLO_CLAMP", "STABLEHLO_REMAINDER"})
OPS = [
    op
    for op in builtin_ops().values()
    if op.is_custom or op.name in BUILTIN_CODES.keys() - NOT_READ - NOT_IN_LITERT
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_samples(op: OpDef) -> None:
    content = samples_model([materialize(op, sample) for sample in op.samples()])
    (found,) = seen(content)
    wanted = read_model(content).main
    compare(found, wanted)
    assert not found.unreadable


#: A value that no other field has, where the schema's enumerations and LiteRT's parsers allow it.
ODD = {
    "padding": 1, "fused_activation_function": 3, "weights_format": 1, "mode": 1,
    "in_data_type": 4, "out_data_type": 7, "output_type": 4, "out_type": 4, "idx_out_type": 4,
    "quantized_bias_type": 4, "new_shape": (3, -1, 7), "squeeze_dims": (2, -1), "kernel_type": 1,
    "combiner": 2,
    "type": 2,
}  # fmt: skip


READ = sorted(n for n in BUILTIN_CODES if struct_of(n) is not None)


def numbered(table: str, turn: int) -> dict[str, Any]:
    """Every field another number, and each flag alone set in its turn."""
    fields: dict[str, Any] = {}
    flags = 0
    for place, (name, default) in enumerate(default_fields(table).items()):
        if name == "quant_spec":
            continue
        if isinstance(default, bool):
            fields[name] = flags == turn
            flags += 1
        elif name == "boundaries":
            fields[name] = tuple(0.5 + turn + n for n in range(3 + turn))
        elif name in ODD:
            fields[name] = ODD[name] if turn else default
        else:
            value = 11 + 10 * place + turn
            fields[name] = value + 0.5 if isinstance(default, float) else value
    return fields


@pytest.mark.parametrize("op", READ)
def test_each_field_is_where_it_should_be(op: str) -> None:
    """The operator makes no sense; LiteRT parses the options before it looks at tensors."""
    reference = options_of(op)
    assert reference is not None
    tensors = {"x": (1, 3, 4, 5), "y": (1, 3, 4, 5)}
    for turn in range(3):
        content = small_model(tensors, (f"y = {op}(x)", numbered(reference.table, turn)))
        (found,) = seen(content)
        assert compare(found, read_model(content).main) == {op}


def test_every_op_is_read_or_said_not_to_be() -> None:
    """An op with options that are in no struct would stay with LiteRT."""
    named = {n for n, op in builtin_ops().items() if n in BUILTIN_CODES and not op.is_custom}
    assert {n for n in named if struct_of(n) is None and not has_no_options(n)} == NOT_READ
    assert {options_of(n).table for n in READ} == set(STRUCTS)  # type: ignore[union-attr]
    for table, struct in STRUCTS.items():
        left_out = set(default_fields(table)) - set(struct.fields)
        assert {(table, field) for field in left_out} <= NOT_KEPT


@pytest.mark.parametrize("make", [samples.conv, samples.loop, samples.sparse, samples.constants])
def test_kinds_of_tensors(make: Callable[[], ModelSpec]) -> None:
    """Constants of every type, sparse ones, several subgraphs, signatures."""
    content = write_model(make())
    graphs = seen(content)
    wanted = read_model(content).subgraphs
    assert len(graphs) == len(wanted)
    for found, file in zip(graphs, wanted, strict=True):
        compare(found, file)
        sparse = {t.index for t in file.tensors if t.sparsity is not None}
        stays = {op.index for op in file.operators if sparse.intersection(op.inputs)}
        assert {n for n, why in found.unreadable.items() if "is sparse" in why} == stays


def test_compressed_zero_points() -> None:
    """One zero point for all scales, as LiteRT keeps them on request."""
    option = "experimental_compress_quantization_zero_points"
    if option not in inspect.signature(litert.Interpreter).parameters:
        pytest.skip("this LiteRT has no such option")
    scales = tuple(float(i + 1) / 8 for i in range(5))
    constant = TensorSpec(
        "c", (5, 2), DType.I8, np.ones((5, 2), np.int8), Quantization(scales, (0,) * 5, 0)
    )
    tensors = [constant, TensorSpec("x", (5, 2)), TensorSpec("y", (5, 2))]
    content = write_model(ModelSpec(tensors, [OperatorSpec("ABS", {}, (1,), (2,))], (1,), (2,)))
    (found,) = seen(content, **{option: True})
    assert found.tensors[0].quantization == constant.quantization


def test_types_have_the_schemas_codes() -> None:
    """TfLiteType, of `tflite_types.h`, by the names that both headers use."""
    c_names = [
        "NOTYPE",
        "FLOAT32",
        "INT32",
        "UINT8",
        "INT64",
        "STRING",
        "BOOL",
        "INT16",
        "COMPLEX64",
        "INT8",
        "FLOAT16",
        "FLOAT64",
        "COMPLEX128",
        "UINT64",
        "RESOURCE",
        "VARIANT",
        "UINT32",
        "UINT16",
        "INT4",
        "BFLOAT16",
    ]
    from tflite import TensorType

    for code, name in enumerate(c_names[1:-1], 1):
        assert tensor_type(code) == getattr(TensorType, name), name
    assert tensor_type(19) == 18


REAL = (
    "deeplabv3_257_mv_gpu", "dtln_model_quant_1", "edsr_f32b5_fp32", "litert_torchaudio_conformer",
    "mobilenet_v1_0.25_224_float", "mobilenet_v1_1.0_224_quant_embedding",
    "mobilenet_v2_1.0_224_ptq_int8", "movie_review_nl_classifier", "mp_hair_segmentation_customops",
    "mp_pose_landmark_full_f16", "mp_selfie_segmentation_f16",
    "posenet_mobilenet_v1_100_257_int8_float_io", "ssd_mobilenet_v1_coco_quant",
    "ssd_mobilenet_v2_oidv4_fp16", "style_transfer_f16_384", "tflm_mnist_lstm_fp32",
)  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_real_models(name: str, model_path: Callable[[str], Path]) -> None:
    content = model_path(name).read_bytes()
    model = read_model(content)
    graphs = seen(content)
    assert graphs
    for found, wanted in zip(graphs, model.subgraphs, strict=False):
        compare(found, wanted)
