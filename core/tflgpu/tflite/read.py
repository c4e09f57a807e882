"""Reading a `.tflite` file: bytes to checked plain values.

Every offset, length, index, shape and buffer is checked before it is used, so a file from anywhere
can be read: what is wrong with it comes back as a ModelError that says where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from tflgpu.errors import ModelError
from tflgpu.errors.blame import quoted
from tflgpu.ir.budget import budget_of
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.bodies import check_nesting
from tflgpu.tflite.flat import DAMAGED, FlatFile, Table
from tflgpu.tflite.inline import inlined
from tflgpu.tflite.later import LaterBuffers, LaterModel, LaterSubgraph, Whole
from tflgpu.tflite.model_file import (
    ModelFile,
    OperatorCode,
    OperatorInfo,
    SignatureInfo,
    SubgraphInfo,
    TensorInfo,
)
from tflgpu.tflite.operators import (
    Limits,
    builtin_codes,
    check_indices,
    read_operator_codes,
    read_operators,
)
from tflgpu.tflite.schema import COMPOSITE
from tflgpu.tflite.source import Source, name_of, open_source
from tflgpu.tflite.tensors import as_input, read_tensor, read_tensors, with_empty_constants

_VERSION = 3


def read_model(
    source: Source,
    known: Callable[[memoryview], bool] = lambda data: False,
    *,
    as_written: bool = False,
) -> ModelFile:
    """Read a model from a path or from bytes.

    Of bytes that are ``known``, since they were read before without fault, only what is asked for
    is read, when it is.

    A file is memory-mapped: constants are views of it, so it must not be changed or truncated while
    the result is in use. The same goes for the memory of a bytearray.

    Args:
        source: The file.
        known: Whether bytes were read before without fault.
        as_written: Whether composites stay; else the operators that they are made of are in their
            place (`tflgpu.tflite.inline`).

    Raises:
        ModelError: there is no such file, it is no TFLite model, or it is malformed. The message
            says what is wrong, where, and what to do.
    """
    try:
        data = open_source(source)
        later = _read_later(data) if not as_written and known(data) else None
        if later is not None:
            return later
        found = _read(FlatFile(data))
        if as_written:
            return found
        with budget_of(len(data)):
            check_nesting(found.subgraphs)
        return inlined(found)
    except ModelError as error:
        raise type(error)(f"{name_of(source)}: {error}") from error.__cause__


def _read(file: FlatFile) -> ModelFile:
    file.require(0, 8, "model")
    model = file.root("model", "Model")
    version = model.integer("version")
    if version != _VERSION:
        raise ModelError(
            f"schema version {version}, but only version {_VERSION} is in use; "
            "convert the model again with a current converter"
        )
    codes = read_operator_codes(model)
    buffers = _buffers(file, model)
    count = model.count("subgraphs")
    if count == 0:
        raise ModelError(f"the model has no subgraphs; {DAMAGED}")
    tables = model.children("subgraphs", "SubGraph", "subgraph")
    subgraphs = tuple(_subgraph(file, t, i, count, codes, buffers) for i, t in enumerate(tables))
    return ModelFile(
        version=version,
        description=model.text("description"),
        operator_codes=codes,
        subgraphs=subgraphs,
        signatures=_signatures(model, subgraphs),
        metadata=_metadata(model, buffers),
        content=file.data,
    )


def _read_later(data: memoryview) -> LaterModel | None:
    """None where there are composites: what their operators bring is known when all is read."""
    file = FlatFile(data)
    file.require(0, 8, "model")
    model = file.root("model", "Model")
    if COMPOSITE in builtin_codes(model):
        return None
    buffers, count = LaterBuffers(model, _buffer, file), model.count("subgraphs")

    def tensor(table: Table, index: int, tensors: int, is_input: bool) -> TensorInfo:
        found = read_tensor(file, table, index, tensors, buffers)
        return as_input(found) if is_input else found

    whole = Whole(lambda: _read(FlatFile(data)))
    subgraphs = tuple(
        LaterSubgraph(whole, table, number, count, tensor)
        for number, table in enumerate(model.children("subgraphs", "SubGraph", "subgraph"))
    )
    return LaterModel(data, whole, subgraphs, _signatures(model, subgraphs))


def _buffers(file: FlatFile, model: Table) -> list[memoryview]:
    return [_buffer(file, t) for t in model.children("buffers", "Buffer", "buffer")]


def _buffer(file: FlatFile, table: Table) -> memoryview:
    inline = table.content("data")
    if len(inline):
        return inline
    # Files over 2 GB keep buffers after the flatbuffer. An offset of 1 is the converter's
    # placeholder for one that it did not fill in.
    start, size = table.integer("offset"), table.integer("size")
    if start <= 1:
        return inline
    file.require(start, size, table.where)
    return file.data[start : start + size]


def _subgraph(
    file: FlatFile,
    table: Table,
    index: int,
    subgraphs: int,
    codes: Sequence[OperatorCode],
    buffers: Sequence[memoryview],
) -> SubgraphInfo:
    tensors = read_tensors(file, table, buffers)
    limits = Limits(index, len(tensors), subgraphs)
    operators = read_operators(file, table, codes, limits)
    inputs, outputs = table.numbers("inputs"), table.numbers("outputs")
    check_indices(inputs, f"{table.where}: input", limits)
    check_indices(outputs, f"{table.where}: output", limits)
    operators = tuple(_of_texts(operator, tensors) for operator in operators)
    for i in inputs:
        tensors[i] = as_input(tensors[i])
    written = {*inputs, *(i for op in operators for i in op.outputs)}
    return SubgraphInfo(
        name=table.text("name"),
        tensors=with_empty_constants(tensors, written),
        inputs=inputs,
        outputs=outputs,
        operators=operators,
    )


def _signatures(model: Table, subgraphs: Sequence[SubgraphInfo]) -> tuple[SignatureInfo, ...]:
    signatures: dict[str, SignatureInfo] = {}
    for table in model.children("signature_defs", "SignatureDef", "signature"):
        key = table.text("signature_key")
        table.where = f"{table.where} ({quoted(key)})"
        if key in signatures:
            raise ModelError(f"{table.where}: there is another signature of this name; {DAMAGED}")
        subgraph = table.integer("subgraph_index")
        if subgraph >= len(subgraphs):
            raise ModelError(
                f"{table.where}: subgraph {subgraph}, but the model has {len(subgraphs)} subgraphs"
            )
        limits = Limits(subgraph, len(subgraphs[subgraph].tensors), len(subgraphs))
        signatures[key] = SignatureInfo(
            key, subgraph, _arguments(table, "inputs", limits), _arguments(table, "outputs", limits)
        )
    return tuple(signatures.values())


def _arguments(signature: Table, name: str, limits: Limits) -> dict[str, int]:
    arguments: dict[str, int] = {}
    where = f"{signature.where}: {name[:-1]}"
    for table in signature.children(name, "TensorMap", where):
        argument, tensor = table.text("name"), table.integer("tensor_index")
        if argument in arguments:
            raise ModelError(f"{where} {quoted(argument)} is named twice; {DAMAGED}")
        if tensor >= limits.tensors:
            raise ModelError(
                f"{where} {quoted(argument)} is tensor {tensor}, but subgraph {limits.subgraph} "
                f"has {limits.tensors} tensors"
            )
        arguments[argument] = tensor
    return arguments


def _metadata(model: Table, buffers: Sequence[memoryview]) -> dict[str, memoryview]:
    metadata = {}
    for table in model.children("metadata", "Metadata", "metadata"):
        name, buffer = table.text("name"), table.integer("buffer")
        if buffer >= len(buffers):
            raise ModelError(
                f"{table.where} ({quoted(name)}): buffer {buffer}, but the model has "
                f"{len(buffers)} buffers"
            )
        metadata[name] = buffers[buffer]
    return metadata


def _of_texts(operator: OperatorInfo, tensors: Sequence[TensorInfo]) -> OperatorInfo:
    """The operator, which says whether it has to do with texts."""
    every = (*operator.inputs, *operator.outputs)
    texts = any(i >= 0 and tensors[i].dtype is DType.STRING for i in every)
    return attrs.evolve(operator, texts=True) if texts else operator
