"""A model whose file was read before, and is read again only where somebody asks.

Reading checks every table, which for a large model takes longer than opening it from what was kept of
it. Of a file that passed once, byte for byte, only what is asked for is read: what the inputs and
outputs are, as a rule. It is checked like everything that is read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import overload

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


class LaterModel(ModelFile):
    """A `ModelFile` that reads its parts when they are asked for."""

    __slots__ = ("_read", "_signatures", "_subgraphs", "_whole", "_whole_lock")
    _read: Callable[[], ModelFile]
    _signatures: tuple[SignatureInfo, ...]
    _subgraphs: tuple[SubgraphInfo, ...]
    _whole: ModelFile | None
    _whole_lock: threading.Lock

    def __init__(
        self,
        data: memoryview,
        read: Callable[[], ModelFile],
        subgraphs: tuple[LaterSubgraph, ...],
        signatures: tuple[SignatureInfo, ...],
    ) -> None:
        """Of a file's bytes; ``read`` reads all of it."""
        given = {
            "content": data, "_read": read, "_whole": None, "_subgraphs": subgraphs,
            "_signatures": signatures, "_whole_lock": threading.Lock(),
        }  # fmt: skip
        for name, value in given.items():
            object.__setattr__(self, name, value)  # these are frozen
        for subgraph in subgraphs:
            subgraph.belongs_to(self)

    @property
    def whole(self) -> ModelFile:
        """All of it as `ModelFile`, read when it is first asked for.

        Raises:
            ModelError: the file is malformed.
        """
        with self._whole_lock:
            if self._whole is None:
                object.__setattr__(self, "_whole", self._read())
            assert self._whole is not None
            return self._whole

    @property
    def version(self) -> int:
        """As `ModelFile`; and so on."""
        return self.whole.version

    @property
    def description(self) -> str:
        """As `ModelFile`."""
        return self.whole.description

    @property
    def operator_codes(self) -> tuple[OperatorCode, ...]:
        """As `ModelFile`."""
        return self.whole.operator_codes

    @property
    def metadata(self) -> Mapping[str, memoryview]:
        """As `ModelFile`."""
        return self.whole.metadata

    @property
    def subgraphs(self) -> tuple[SubgraphInfo, ...]:
        """As `ModelFile`."""
        return self._subgraphs

    @property
    def signatures(self) -> tuple[SignatureInfo, ...]:
        """As `ModelFile`."""
        return self._signatures


class LaterSubgraph(SubgraphInfo):
    """A `SubgraphInfo` that reads its tensors one by one, and its operators together."""

    __slots__ = ("_model", "_number")
    _model: LaterModel
    _number: int

    def __init__(
        self,
        table: Table,
        number: int,
        subgraphs: int,
        tensor: Callable[[Table, int, int], TensorInfo],
    ) -> None:
        """Of a subgraph's table; ``tensor`` reads a tensor's, which is the i-th of so many."""
        limits = Limits(number, table.count("tensors"), subgraphs)
        inputs, outputs = table.numbers("inputs"), table.numbers("outputs")
        check_indices(inputs, f"{table.where}: input", limits)
        check_indices(outputs, f"{table.where}: output", limits)
        given = {
            "name": table.text("name"), "inputs": inputs, "outputs": outputs,
            "tensors": LaterTensors(self, table, tensor), "_number": number,
        }  # fmt: skip
        for name, value in given.items():
            object.__setattr__(self, name, value)

    def belongs_to(self, model: LaterModel) -> None:
        """Whose subgraph it is."""
        object.__setattr__(self, "_model", model)

    @property
    def whole(self) -> SubgraphInfo:
        """All of it as `SubgraphInfo`."""
        return self._model.whole.subgraphs[self._number]

    @property
    def operators(self) -> tuple[OperatorInfo, ...]:
        """As `SubgraphInfo`."""
        return self.whole.operators


class LaterTensors(Sequence[TensorInfo]):
    """The tensors of a subgraph, each read when it is asked for."""

    def __init__(
        self,
        subgraph: LaterSubgraph,
        table: Table,
        tensor: Callable[[Table, int, int], TensorInfo],
    ) -> None:
        self._subgraph = subgraph
        self._table = table
        self._tensor = tensor
        self._count = table.count("tensors")
        self._found: dict[int, TensorInfo] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> TensorInfo: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[TensorInfo]: ...

    def __getitem__(self, index: int | slice) -> TensorInfo | Sequence[TensorInfo]:
        if isinstance(index, slice):
            return self._subgraph.whole.tensors[index]
        place = index + self._count if index < 0 else index
        if not 0 <= place < self._count:
            raise IndexError(index)
        found = self._found.get(place)
        if found is None:
            found = self._found[place] = self._read(place)
        return found

    def __iter__(self) -> Iterator[TensorInfo]:
        return iter(self._subgraph.whole.tensors)

    def _read(self, index: int) -> TensorInfo:
        where = f"{self._table.where}, tensor"
        found = self._tensor(
            self._table.child_at("tensors", "Tensor", where, index), index, self._count
        )
        if found.data is None and 0 in found.shape:
            # Whether it is a constant without elements hangs on the operators.
            return self._subgraph.whole.tensors[index]
        return found


class LaterBuffers(Sequence[memoryview]):
    """The buffers of a model, each looked up when it is asked for."""

    def __init__(
        self, model: Table, buffer: Callable[[FlatFile, Table], memoryview], file: FlatFile
    ) -> None:
        self._model = model
        self._buffer = buffer
        self._file = file
        self._count = model.count("buffers")

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> memoryview: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[memoryview]: ...

    def __getitem__(self, index: int | slice) -> memoryview | Sequence[memoryview]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._buffer(self._file, self._model.child_at("buffers", "Buffer", "buffer", index))
