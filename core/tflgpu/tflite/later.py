"""A model file that was checked before: each part is read at its first use.

Reading checks every table, which for a large model takes longer than opening its saved start. Of a
file that passed once, byte for byte, only the parts that are used are read and checked: as a rule
the inputs and outputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from tflgpu.ir.later import LaterSequence
from tflgpu.tflite.flat import FlatFile, Table
from tflgpu.tflite.model_file import (
    ModelFile,
    OperatorCode,
    OperatorInfo,
    SignatureInfo,
    SubgraphInfo,
    TensorInfo,
)
from tflgpu.tflite.operators import Limits, check_indices


class Whole:
    """All of a file, read at the first use by ``read``."""

    def __init__(self, read: Callable[[], ModelFile]) -> None:
        self._read = read
        self._found: ModelFile | None = None
        self._lock = threading.Lock()

    def model(self) -> ModelFile:
        """The file.

        Raises:
            ModelError: it is malformed.
        """
        with self._lock:
            if self._found is None:
                self._found = self._read()
            return self._found


class LaterModel(ModelFile):
    """A `ModelFile` that reads its parts when they are asked for."""

    __slots__ = ("_whole",)
    _whole: Whole

    def __init__(
        self,
        data: memoryview,
        whole: Whole,
        subgraphs: tuple[LaterSubgraph, ...],
        signatures: tuple[SignatureInfo, ...],
    ) -> None:
        """A model in these bytes; ``whole`` reads all of it."""
        given = {
            "content": data,
            "_whole": whole,
            "subgraphs": subgraphs,
            "signatures": signatures,
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)  # these are frozen

    @property
    def whole(self) -> ModelFile:
        """All of it as `ModelFile`, read when it is first asked for.

        Raises:
            ModelError: the file is malformed.
        """
        return self._whole.model()

    @property
    def version(self) -> int:
        """The version of the file format."""
        return self.whole.version

    @property
    def description(self) -> str:
        """The file's description."""
        return self.whole.description

    @property
    def operator_codes(self) -> tuple[OperatorCode, ...]:
        """The operators that the file uses."""
        return self.whole.operator_codes

    @property
    def metadata(self) -> Mapping[str, memoryview]:
        """The file's metadata, by name."""
        return self.whole.metadata


class LaterSubgraph(SubgraphInfo):
    """A `SubgraphInfo` that reads its tensors one by one, and its operators together."""

    __slots__ = ("_number", "_whole")
    _number: int
    _whole: Whole

    def __init__(
        self,
        whole: Whole,
        table: Table,
        number: int,
        subgraphs: int,
        tensor: Callable[[Table, int, int, bool], TensorInfo],
    ) -> None:
        """A subgraph by its table; ``tensor(table, index, count, is_input)`` reads one tensor."""
        limits = Limits(number, table.count("tensors"), subgraphs)
        inputs, outputs = table.numbers("inputs"), table.numbers("outputs")
        check_indices(inputs, f"{table.where}: input", limits)
        check_indices(outputs, f"{table.where}: output", limits)
        given = {
            "name": table.text("name"),
            "inputs": inputs,
            "outputs": outputs,
            "tensors": LaterTensors(whole, table, number, tensor, inputs),
            "_number": number,
            "_whole": whole,
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)

    @property
    def whole(self) -> SubgraphInfo:
        """All of it as `SubgraphInfo`."""
        return self._whole.model().subgraphs[self._number]

    @property
    def operators(self) -> tuple[OperatorInfo, ...]:
        """All operators, read together at the first use."""
        return self.whole.operators


class LaterTensors(LaterSequence[TensorInfo]):
    """The tensors of a subgraph, each read when it is asked for."""

    def __init__(
        self,
        whole: Whole,
        table: Table,
        number: int,
        tensor: Callable[[Table, int, int, bool], TensorInfo],
        inputs: Sequence[int],
    ) -> None:
        super().__init__(table.count("tensors"))
        self._inputs = inputs
        self._whole = whole
        self._table = table
        self._number = number
        self._tensor = tensor
        self._found: dict[int, TensorInfo] = {}

    def item(self, index: int) -> TensorInfo:
        """A tensor, read at the first time."""
        if index not in self._found:
            self._found[index] = self._read(index)
        return self._found[index]

    def __iter__(self) -> Iterator[TensorInfo]:
        return iter(self._all())

    def _all(self) -> Sequence[TensorInfo]:
        return self._whole.model().subgraphs[self._number].tensors

    def _read(self, index: int) -> TensorInfo:
        where = f"{self._table.where}, tensor"
        found = self._tensor(
            self._table.child_at("tensors", "Tensor", where, index),
            index,
            self._count,
            index in self._inputs,
        )
        if found.data is None and 0 in found.shape:
            # Whether it is a constant without elements hangs on the operators.
            return self._all()[index]
        return found


class LaterBuffers(LaterSequence[memoryview]):
    """The buffers of a model, each looked up when it is asked for."""

    def __init__(
        self, model: Table, buffer: Callable[[FlatFile, Table], memoryview], file: FlatFile
    ) -> None:
        super().__init__(model.count("buffers"))
        self._model = model
        self._buffer = buffer
        self._file = file

    def item(self, index: int) -> memoryview:
        """A buffer's contents."""
        return self._buffer(self._file, self._model.child_at("buffers", "Buffer", "buffer", index))
