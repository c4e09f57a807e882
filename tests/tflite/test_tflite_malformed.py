"""Each way a file can be wrong, and what the reader says of it."""

from __future__ import annotations

import copy
import gzip
import math
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.encode import Record, encode, finish
from tflgpu.tflite.model_file import Blockwise
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec
from tflgpu.tflite.write import model_record, write_model

from tests.small_models import small_spec, tensor_of
from tests.tflite import samples

Tree = dict[str, Any]


def wrong(spec: ModelSpec, change: Callable[[Tree], None]) -> bytes:
    """A model that is ``spec`` but for a change to its tables."""
    root, buffers = model_record(spec)
    root = copy.deepcopy(root)
    tree = dict(root.values)
    change(tree)
    return finish(Record("Model", tree), tree.pop("contents", buffers))


def tensor(tree: Tree, index: int, subgraph: int = 0) -> Tree:
    return tree["subgraphs"][subgraph].values["tensors"][index].values


def operator(tree: Tree, index: int) -> Tree:
    return tree["subgraphs"][0].values["operators"][index].values


def quantization(tree: Tree, index: int) -> Tree:
    return tensor(tree, index)["quantization"].values


def level(tree: Tree, index: int) -> Tree:
    return tensor(tree, 0)["sparsity"].values["dim_metadata"][index].values


def put(find: Callable[[Tree], Tree], **values: Any) -> Callable[[Tree], None]:
    return lambda tree: find(tree).update(values)


CONV: list[tuple[Callable[[Tree], None], str]] = [
    (put(lambda t: t, version=2), "schema version 2, but only version 3 is in use"),
    (put(lambda t: t, subgraphs=[]), "the model has no subgraphs"),
    (
        put(lambda t: operator(t, 0), inputs=[0, 999, 2]),
        r"operator 0 \(CONV_2D\): input 1 is tensor 999, but subgraph 0 has 4 tensors",
    ),
    (
        put(lambda t: operator(t, 0), inputs=[0, -2, 2]),
        r"operator 0 \(CONV_2D\): input 1 is tensor -2",
    ),
    (
        put(lambda t: operator(t, 0), outputs=[4]),
        r"operator 0 \(CONV_2D\): output 0 is tensor 4, but subgraph 0 has 4 tensors",
    ),
    (put(lambda t: operator(t, 0), outputs=[-1]), "output 0 is tensor -1"),
    (put(lambda t: operator(t, 0), intermediates=[7]), "intermediate 0 is tensor 7"),
    (
        put(lambda t: operator(t, 0), opcode_index=5),
        "operator 0: operator code 5, but the model has 1 of them",
    ),
    (
        put(lambda t: operator(t, 0), builtin_options_type=11),
        r"operator 0 \(CONV_2D\): options of type AddOptions where Conv2DOptions belong",
    ),
    (
        put(lambda t: operator(t, 0), builtin_options_type=250),
        r"operator 0 \(CONV_2D\): options of type 250 are not in the schema known here",
    ),
    (
        put(
            lambda t: operator(t, 0), large_custom_options_offset=10**6, large_custom_options_size=9
        ),
        "large custom options: needs 9 bytes at offset 1,000,000",
    ),
    (
        put(lambda t: t["operator_codes"][0].values, deprecated_builtin_code=-1, builtin_code=-1),
        "operator code 0: builtin code -1 is negative",
    ),
    (
        put(lambda t: t["operator_codes"][0].values, deprecated_builtin_code=127),
        "operator code 0: a placeholder where the real code should be",
    ),
    (put(lambda t: t["operator_codes"][0].values, version=0), "operator code 0: version 0"),
    (
        put(lambda t: tensor(t, 1), shape=[5, 3, 3, 3]),
        r"tensor 1 \('w'\): buffer of 360 bytes for f32 of shape \(5, 3, 3, 3\), which takes 540",
    ),
    (put(lambda t: tensor(t, 1), type=9), "buffer of 360 bytes for i8 of shape"),
    (put(lambda t: tensor(t, 1), type=13), "constant of type resource has no defined content"),
    (put(lambda t: tensor(t, 1), external_buffer=3), "its constant is in another file"),
    (put(lambda t: tensor(t, 1), is_variable=True), "a variable with a constant value"),
    (
        put(lambda t: tensor(t, 0), type=77),
        r"subgraph 0, tensor 0 \('x'\): element type 77 is not in the schema known here",
    ),
    (
        put(lambda t: tensor(t, 0), shape=[1, -7, 5, 2]),
        r"has a negative size in its shape \[1, -7, 5, 2\]",
    ),
    (put(lambda t: tensor(t, 0), shape=[1] * 33), "33 dimensions; at most 32 are supported"),
    (put(lambda t: tensor(t, 0), shape=[2**31 - 1] * 4), "is too large"),
    (put(lambda t: tensor(t, 0), shape=[0, *[2**31 - 1] * 4]), "is too large"),
    (
        put(lambda t: tensor(t, 0), shape_signature=[-1, 7]),
        r"shape signature \(-1, 7\) for shape \(1, 7, 5, 2\)",
    ),
    (put(lambda t: tensor(t, 0), shape_signature=[-2, 7, 5, 2]), "shape signature"),
    (
        put(lambda t: tensor(t, 0), buffer=66),
        r"tensor 0 \('x'\): buffer 66, but the model has 4 buffers",
    ),
    (
        put(lambda t: t["subgraphs"][0].values, inputs=[44]),
        "subgraph 0: input 0 is tensor 44, but subgraph 0 has 4 tensors",
    ),
    (put(lambda t: t["subgraphs"][0].values, outputs=[-1]), "subgraph 0: output 0 is tensor -1"),
    (
        put(lambda t: t["metadata"][0].values, buffer=9),
        r"metadata 0 \('note'\): buffer 9, but the model has 4 buffers",
    ),
    (
        put(lambda t: t["signature_defs"][0].values, subgraph_index=1),
        r"signature 0 \('serve'\): subgraph 1, but the model has 1 subgraphs",
    ),
    (
        put(lambda t: t["signature_defs"][0].values["inputs"][0].values, tensor_index=4),
        "input 'image' is tensor 4, but subgraph 0 has 4 tensors",
    ),
    (
        lambda t: t["signature_defs"].append(t["signature_defs"][0]),
        r"signature 1 \('serve'\): there is another signature of this name",
    ),
    (
        lambda t: (
            t["signature_defs"][0]
            .values["outputs"]
            .append(t["signature_defs"][0].values["outputs"][0])
        ),
        "output 'features' is named twice",
    ),
]

QUANTIZED: list[tuple[Callable[[Tree], None], str]] = [
    (
        put(lambda t: quantization(t, 1), zero_point=[0]),
        r"tensor 1 \('w'\): quantization: 1 zero points for 3 scales",
    ),
    (put(lambda t: quantization(t, 1), zero_point=None), "0 zero points for 3 scales"),
    (
        put(lambda t: quantization(t, 1), quantized_dimension=1),
        r"3 scales along axis 1 of shape \(3, 8\)",
    ),
    (
        put(lambda t: quantization(t, 1), scale=[1.0] * 4, zero_point=[0] * 4),
        r"4 scales along axis 0 of shape \(3, 8\)",
    ),
    (put(lambda t: quantization(t, 1), quantized_dimension=2), "3 scales along axis 2"),
    (put(lambda t: quantization(t, 1), quantized_dimension=-1), "3 scales along axis -1"),
    (put(lambda t: quantization(t, 0), scale=[-1.0]), r"scale -1.0 is not a finite number >= 0"),
    (put(lambda t: quantization(t, 0), scale=[math.nan]), "scale nan is not a finite number"),
    (put(lambda t: quantization(t, 0), scale=[math.inf]), "scale inf is not a finite number"),
    (put(lambda t: quantization(t, 0), zero_point=[2**31]), "2147483648 is not a 32-bit number"),
    (put(lambda t: quantization(t, 0), details_type=9), "details of type 9 are not in the schema"),
    (put(lambda t: quantization(t, 0), details_type=2), "blockwise, but without its details"),
    (
        put(
            lambda t: quantization(t, 0),
            details_type=2,
            details=Record("BlockwiseQuantization", {"scales": 50, "block_size": 32}),
        ),
        "blocks of 32 with scales in tensor 50 and zero points in tensor 0",
    ),
    (
        put(lambda t: t["operator_codes"][1].values, custom_code=None),
        "operator code 1: a custom operator without a name",
    ),
]

SPARSE: list[tuple[Callable[[Tree], None], str]] = [
    (
        put(lambda t: tensor(t, 0)["sparsity"].values, traversal_order=[0, 1, 2, 2]),
        r"traversal order \(0, 1, 2, 2\) does not name each of 2 dimensions and 2 blocks once",
    ),
    (put(lambda t: tensor(t, 0)["sparsity"].values, block_map=[0, 2]), "block map"),
    (put(lambda t: tensor(t, 0)["sparsity"].values, block_map=[1, 1]), "block map"),
    (lambda t: tensor(t, 0)["sparsity"].values["dim_metadata"].pop(), "3 levels for 4 dimensions"),
    (put(lambda t: level(t, 0), dense_size=3), "dense size 3 of dimension 0, whose size is 2"),
    (put(lambda t: level(t, 2), dense_size=3), "blocks of 3 do not divide dimension 0 of size 4"),
    (put(lambda t: level(t, 2), dense_size=0), "blocks of 0 do not divide"),
    (put(lambda t: level(t, 0), format=2), "dimension format 2 is not in the schema"),
    (
        put(lambda t: level(t, 1)["array_segments"].values, values=[0, 1, 2]),
        "segment bounds do not run from 0 to 3 without falling",
    ),
    (
        put(lambda t: level(t, 1)["array_segments"].values, values=[0, 4, 3]),
        "segment bounds do not run from 0 to 3 without falling",
    ),
    (
        put(lambda t: level(t, 1)["array_segments"].values, values=[0, 3]),
        "level 1: 2 segment bounds for 2 parents",
    ),
    (
        put(lambda t: level(t, 1)["array_indices"].values, values=[1, 0, 3]),
        "an index is outside the dimension's size 3",
    ),
    (put(lambda t: level(t, 1), array_indices=None), "array_indices: a compressed dimension"),
    (put(lambda t: level(t, 1), array_indices_type=0), "array_indices: a compressed dimension"),
    (
        lambda t: t.update(contents=[b"", bytes(44)]),
        "buffer of 44 bytes for 12 sparse values of f32",
    ),
    (put(lambda t: tensor(t, 0), type=17), "a sparse constant of type i4 is not defined"),
]

CASES = (
    [(samples.conv, *c) for c in CONV]
    + [(samples.quantized, *c) for c in QUANTIZED]
    + [(samples.sparse, *c) for c in SPARSE]
    + [
        (
            samples.loop,
            put(lambda t: operator(t, 0)["builtin_options"].values, body_subgraph_index=3),
            r"operator 0 \(WHILE\): body_subgraph_index is 3, but the model has 3 subgraphs",
        ),
        (
            samples.loop,
            put(lambda t: operator(t, 0)["builtin_options"].values, cond_subgraph_index=-1),
            "cond_subgraph_index is -1",
        ),
    ]
)


@pytest.mark.parametrize(("make", "change", "message"), CASES, ids=[c[2] for c in CASES])
def test_wrong_value(
    make: Callable[[], ModelSpec], change: Callable[[Tree], None], message: str
) -> None:
    read_model(write_model(make()))
    with pytest.raises(ModelError, match=message):
        read_model(wrong(make(), change))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x01\x00", "string buffer of 2 bytes"),
        (struct.pack("<3i", 2, 12, 12), "2 strings for shape"),
        (struct.pack("<2i", 1, 12), "1 strings in a buffer of 8 bytes"),
        (struct.pack("<3i", 1, 12, 13), "string offsets do not rise within the buffer"),
        (struct.pack("<3i", 1, 8, 12), "string offsets do not rise within the buffer"),
        (struct.pack("<3i", 1, 12, 11), "string offsets do not rise within the buffer"),
    ],
)
def test_wrong_strings(content: bytes, message: str) -> None:
    spec = small_spec({"s": tensor_of((1,), DType.STRING, [b"text"])}, outputs="s")
    with pytest.raises(ModelError, match=message):
        read_model(wrong(spec, lambda t: t.update(contents=[b"", content])))


def test_every_truncation_is_refused_or_lacks_nothing() -> None:
    whole = write_model(samples.conv())
    want = read_model(whole).main
    read = []
    for size in range(len(whole)):
        try:
            main = read_model(whole[:size]).main
        except ModelError:
            continue
        read.append(size)
        assert main.operators == want.operators
        for a, b in zip(main.tensors, want.tensors, strict=True):
            np.testing.assert_array_equal(a.data, b.data)
    # All that can go is what pads the last buffer to its alignment.
    assert read == list(range(len(whole) - len(read), len(whole)))
    assert len(read) < 16


def test_offsets_and_vtables_outside_the_file() -> None:
    whole = write_model(samples.conv())
    root = struct.unpack_from("<I", whole)[0]
    vtable = root - struct.unpack_from("<i", whole, root)[0]
    for position, fmt, value, message in (
        (0, "<I", 2**32 - 1, "model: root table: needs 1 bytes at offset 4,294,967,295"),
        (0, "<I", 0, "an offset of 0 points to itself"),
        (root, "<i", 2**31 - 1, "model: vtable: needs 4 bytes at offset -"),
        (root, "<i", -(2**31), "model: vtable: needs 4 bytes at offset 2,147"),
        (vtable, "<H", 3, "model: vtable of 3 bytes"),
        (vtable, "<H", 2, "model: vtable of 2 bytes"),
        (vtable, "<H", 5, "model: vtable of 5 bytes"),
        (vtable, "<H", 65534, "model: vtable: needs 65,534 bytes"),
        (vtable + 4, "<H", 65535, "model: version: needs 4 bytes"),
        (vtable + 4, "<H", 2, "version lies in the table's header"),
    ):
        data = bytearray(whole)
        struct.pack_into(fmt, data, position, value)
        with pytest.raises(ModelError, match=message):
            read_model(data)


def test_external_buffers_and_options_lie_after_the_flatbuffer() -> None:
    values = np.arange(90, dtype=np.float32)

    def move(tree: Tree, offset: int, size: int) -> bytes:
        buffers: list[Any] = [Record("Buffer", {}) for _ in range(4)]
        buffers[1] = Record("Buffer", {"offset": offset, "size": size})
        buffers[2] = Record("Buffer", {"offset": 1, "size": 1})
        tensor(tree, 2)["shape"] = [5]
        return finish_with(tree, buffers)

    def finish_with(tree: Tree, buffers: list[Any]) -> bytes:
        builder = flatbuffers.Builder(1024)
        model = encode(builder, Record("Model", {**tree, "buffers": buffers}), "model")
        builder.Finish(model, b"TFL3")
        return bytes(builder.Output())

    root, _ = model_record(samples.conv())
    tree = dict(root.values)
    start = len(move(tree, 2**20, 360))
    data = move(tree, start, 360) + values.tobytes()
    main = read_model(data).main
    assert main.tensors[1].data is not None
    assert main.tensors[1].data.reshape(-1).tolist() == values.tolist()
    assert main.tensors[2].data is None
    with pytest.raises(ModelError, match=r"buffer 1: needs 360 bytes at offset"):
        read_model(data[:-1])
    with pytest.raises(ModelError, match="buffer 1: needs"):
        read_model(move(tree, 2**63, 2**63))


def test_builtin_newer_than_the_schema_is_read_without_options() -> None:
    spec = small_spec({"x": (1,)}, "x = RELU(x)", inputs="x", outputs="x")
    change = put(
        lambda t: t["operator_codes"][0].values, deprecated_builtin_code=127, builtin_code=4000
    )
    (op,) = read_model(wrong(spec, change)).main.operators
    assert (op.name, op.is_custom, op.fields) == ("BUILTIN_4000", False, {})


def test_old_files_have_the_code_in_the_deprecated_field_only() -> None:
    change = put(lambda t: t["operator_codes"][0].values, builtin_code=None)
    assert read_model(wrong(samples.conv(), change)).main.operators[0].name == "CONV_2D"


def test_absent_options_read_as_the_defaults() -> None:
    change = put(lambda t: operator(t, 0), builtin_options=None, builtin_options_type=None)
    fields = read_model(wrong(samples.conv(), change)).main.operators[0].fields
    assert fields["stride_w"] == 0
    assert fields["dilation_w_factor"] == 1


def test_names_that_are_not_utf8_stay_visible() -> None:
    data = bytearray(write_model(samples.conv()))
    data[data.index(b"image")] = 0xFF
    (signature,) = read_model(data).signatures
    assert list(signature.inputs) == ["\\xffmage"]


def test_blockwise_quantization_is_read() -> None:
    details = Record("BlockwiseQuantization", {"scales": 2, "zero_points": -1, "block_size": 32})
    change = put(
        lambda t: quantization(t, 1), scale=None, zero_point=None, details_type=2, details=details
    )
    weights = read_model(wrong(samples.quantized(), change)).main.tensors[1]
    assert weights.quantization is None
    assert weights.blockwise == Blockwise(2, -1, 32)


# Where models come from, and what is said of files that are none.


def test_path_and_string(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(write_model(samples.conv()))
    assert read_model(path).main.operators == read_model(str(path)).main.operators


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone\.tflite: no such file; check the path"):
        read_model(tmp_path / "gone.tflite")


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"it is a directory; give the path of the \.tflite file"):
        read_model(tmp_path)


def test_saved_model_directory(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ModelError, match=r"TFLiteConverter\.from_saved_model"):
        read_model(tmp_path)


def test_empty_file_and_empty_memory(tmp_path: Path) -> None:
    path = tmp_path / "empty.tflite"
    path.touch()
    with pytest.raises(ModelError, match=r"empty\.tflite: the file is empty"):
        read_model(path)
    with pytest.raises(ModelError, match="model of 0 bytes in memory: the file is empty"):
        read_model(b"")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ModelError, match="not a regular file"):
        read_model(path)


def test_path_with_a_zero_byte() -> None:
    with pytest.raises(ModelError, match=r"cannot be read: .*embedded null"):
        read_model("model\0.tflite")


def test_neither_path_nor_bytes() -> None:
    with pytest.raises(ModelError, match="a model is a path or bytes, not int"):
        read_model(3)  # type: ignore[arg-type]


def test_memory_with_gaps() -> None:
    with pytest.raises(ModelError, match="not contiguous"):
        read_model(memoryview(write_model(samples.conv()))[::2])


def test_zip(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
    with pytest.raises(ModelError, match="looks like a zip archive"):
        read_model(path)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5 file"),
        (gzip.compress(b"model", mtime=0), "gzip archive; unpack it"),
        (b"\x08\x01\x12\xff\x04\n\x05serve", r"SavedModel \(saved_model.pb\)"),
        (b"\x08\x07\x12\x07pytorch\x1a\x051.8.0", "ONNX model"),
        (b"\n\x16\n\x05input\x12\x0bPlaceholder", r"frozen graph \(.pb\)"),
        (b"version https://git-lfs.github.com/spec/v1\n", "run `git lfs pull`"),
        (b"<!DOCTYPE html><html>Not found", "web page"),
        (b"LITERTLM" + bytes(32), "LiteRT-LM bundle"),
        (b"tflgpu saved 2\n\0" + bytes(50), r"compiled model.*GpuDelegate\(saved="),
        (b"\x18\0\0\0ORTM" + bytes(32), r"ONNX Runtime \.ort model"),
        (b"\x18\0\0\0TFL2" + bytes(32), "identifier is TFL2, not TFL3"),
        (b"no model at all", "are not the identifier TFL3; check that the path is the right one"),
        (b"\x01", "are not the identifier TFL3"),
    ],
)
def test_what_else_it_may_be(head: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=f"not a TFLite model: .*{message}"):
        read_model(head)


def test_the_identifier_alone_is_no_model() -> None:
    with pytest.raises(ModelError, match="model: root table"):
        read_model(b"\x08\0\0\0TFL3")


def test_a_model_followed_by_a_zip_of_associated_files_reads() -> None:
    """TFLite Metadata appends label files as a zip archive."""
    data = write_model(samples.conv())
    assert read_model(data + b"PK\x03\x04labels.txt").main.operators
