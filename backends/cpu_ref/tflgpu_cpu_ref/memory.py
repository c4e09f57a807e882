"""Host memory of a recording: blocks with optional guard bands, and views of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tflgpu.backend_kit.account import Ledger
from tflgpu.backend_kit.base_buffer import BaseBuffer, flat_bytes, host_span
from tflgpu.backend_kit.plan_memory import POISON, BasePlanMemory, named_arenas
from tflgpu.backend_kit.shared_weights import Made, SharedWeights
from tflgpu.compiler.plan import ArenaRef, OutputRef, Plan
from tflgpu.contract.buffers import Bytes, Span
from tflgpu.contract.memory_use import Use
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array


class Block:
    """``nbytes`` of memory named for messages, with ``band`` bytes before and after them."""

    def __init__(self, name: str, whole: Bytes, band: int = 0) -> None:
        self.name = name
        self.band = band
        self.whole = whole
        self.nbytes = len(whole) - 2 * band
        self.bytes = whole[band : band + self.nbytes]

    def view(self, dtype: np.dtype[Any]) -> Array:
        """A flat array over it."""
        return self.bytes.view(dtype)


class Memory(BasePlanMemory[Block]):
    """The blocks of a plan. An arena is one, so that dispatches may be asked whether their
    bindings overlap."""

    def __init__(
        self,
        plan: Plan,
        *,
        limit: int,
        guarded: bool,
        ledger: Ledger | None = None,
        shared: SharedWeights[Block] | None = None,
    ) -> None:
        """Allocate; constants are used where they lie, those of others among the ``shared``.

        Raises:
            DeviceError: memory ran out.
        """
        super().__init__(limit=limit, guarded=guarded, ledger=ledger)
        self._plan = plan
        arenas = named_arenas(plan.arenas or (0,))
        self._arenas = [self._block(name, nbytes, Use.ARENA) for name, nbytes in arenas]
        self.inputs = [self._block(f"input {io.name}", io.nbytes) for io in plan.inputs]
        self.outputs = [self._block(f"output {io.name}", io.nbytes) for io in plan.outputs]
        self.hold(shared, plan.constants, self._new_constants, lambda block: block.bytes)

    @property
    def regions(self) -> list[Block]:
        """All blocks."""
        return [*self._arenas, *super().regions]

    def poison(self) -> None:
        """Overwrite the arenas, what no dispatch is bound to included, and the outputs."""
        for arena in self._arenas:
            self._overwrite(arena, POISON)
        for i, block in enumerate(self.outputs):
            self._overwrite(self.bound.get(OutputRef(i), block), POISON)

    def part(self, region: Block, nbytes: int) -> Block:
        """Only that much of it, so that what lies behind is out of bounds."""
        return Block(region.name, region.bytes[:nbytes])

    def _slice(self, name: str, ref: ArenaRef) -> Block:
        arena = self._arenas[ref.arena]
        return Block(name, arena.bytes[ref.offset : ref.offset + ref.nbytes])

    def _look(self, region: Block, start: int, nbytes: int) -> Bytes:
        return region.whole[region.band + start : region.band + start + nbytes]

    def _overwrite(self, region: Block, value: int) -> None:
        region.bytes[...] = value

    def _new_constants(self, indices: Sequence[int]) -> list[Made[Block]]:
        made: list[Made[Block]] = []
        for i in indices:
            data = flat_bytes(self._plan.constants[i]).view()
            data.setflags(write=False)
            ledger = self.ledger.account.ledger()
            ledger.take(Use.WEIGHTS, data.nbytes, f"constant {i}")
            made.append((Block(f"constant {i}", data), ledger.close))
        return made

    def _block(self, name: str, nbytes: int, use: Use = Use.STAGING) -> Block:
        self.check_size(name, nbytes)
        self.ledger.take(use, nbytes + 2 * self.band, name)
        try:
            whole = self.fenced(nbytes)
        except (MemoryError, ValueError) as error:
            raise DeviceError(f"allocating {nbytes} bytes for {name}: {error}") from error
        block = Block(name, whole, self.band)
        block.bytes[...] = 0
        return block


class HostBuffer(BaseBuffer):
    """A `Buffer` in host memory."""

    region: Block

    def _write(self, data: Bytes) -> None:
        self.region.bytes[: len(data)] = data

    def _read(self, nbytes: int) -> Bytes:
        return self.region.bytes[:nbytes]

    def _export(self) -> object:
        return self.region.bytes

    @property
    def span(self) -> Span:
        """Its host memory."""
        return host_span(self.region.bytes)
