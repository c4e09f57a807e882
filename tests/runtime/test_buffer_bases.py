"""What backends find in the core whose buffers are allocations of their own, and whose runs are
lists of commands: on a driver that is a few lines of NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.backend_kit.account import Account
from tflgpu.backend_kit.buffer_memory import BufferPlanMemory
from tflgpu.backend_kit.placement import Placement, as_planned, place
from tflgpu.backend_kit.shared_weights import SharedWeights
from tflgpu.backend_kit.staged_recording import StagedRecording
from tflgpu.backend_kit.staging import CopiedInput, CopiedOutput, Outline
from tflgpu.compiler.plan import ArenaRef, ConstRef, InputRef, OutputRef, Plan, Ref
from tflgpu.conformance.plans import affine, chain, chain_expected, dispatch, io, plan
from tflgpu.contract.memory_use import Use
from tflgpu.errors import DeviceError
from tflgpu.language.interpreter import interpret
from tflgpu.lowering.reason import Unsupported

Array = np.ndarray[Any, Any]


@attrs.frozen(eq=False)
class Region:
    """``buffer`` is what kernels see, of ``whole``."""

    name: str
    nbytes: int
    buffer: Array
    whole: Array
    band: int = 0


class Memory(BufferPlanMemory[Region]):
    """The driver may refuse the n-th buffer."""

    made: list[Region]
    refuses = -1

    def __init__(self, plan: Plan, placement: Placement, **facts: Any) -> None:
        super().__init__(plan, placement, limit=1 << 20, **{"guarded": False, **facts})
        self.made = []

    def _make(self, name: str, nbytes: int, size: int, image: Array | None) -> Region:
        if len(self.made) == self.refuses:
            raise DeviceError(f"no {name}")
        whole = np.full(size, 7, np.uint8) if image is None else image.copy()
        assert whole.nbytes == size
        inside = whole[self.band : self.band + nbytes]
        self.made.append(Region(name, nbytes, inside, whole, self.band))
        return self.made[-1]

    def _part(self, name: str, nbytes: int, of: Region, offset: int) -> Region:
        return Region(name, nbytes, of.whole[offset : offset + nbytes], of.whole)

    def _read(self, region: Region, start: int, nbytes: int) -> Array:
        at = region.band + start
        return region.whole[at : at + nbytes] if region.band else region.buffer[start:][:nbytes]

    def _write(self, region: Region, data: Array) -> None:
        region.buffer[:] = data

    @staticmethod
    def _free(region: Region) -> None:
        FREED.append(region.name)

    def _staging(self) -> int:
        return 0


FREED: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_freed() -> None:
    FREED.clear()


CONSTANTS = [np.arange(n, dtype=np.float32) for n in (9, 1, 0)]
REFS: list[list[Ref]] = [[ConstRef(i), OutputRef(i)] for i in range(3)]
OF_CONSTANTS = plan(
    [dispatch(affine(c.size, 1, 0), c.size, r) for c, r in zip(CONSTANTS, REFS, strict=True)],
    outputs=[io(f"y{i}", c.shape) for i, c in enumerate(CONSTANTS)],
    constants=CONSTANTS,
)


@pytest.mark.parametrize("made_by", [as_planned, place, lambda plan: Placement((), {})])
def test_the_footprint_is_what_is_counted(made_by: Callable[[Plan], Placement]) -> None:
    for made in (chain(257, 16, steps=4), OF_CONSTANTS):
        account = Account()
        memory = Memory(made, made_by(made), ledger=account.ledger())
        footprint = memory.footprint
        assert account.use.total == 0
        memory.allocate(None)
        refs = {r for d in made.dispatches for r in d.refs if isinstance(r, ArenaRef)}
        for ref in refs:
            memory.resolve(ref)
        assert account.use == footprint
        assert footprint.total == sum(r.whole.nbytes for r in memory.made)
        memory.release()
        assert sorted(FREED) == sorted(r.name for r in memory.made)
        assert account.use.total == 0
        FREED.clear()


def test_constants_are_shared_and_outlive_who_made_them() -> None:
    weights, account = SharedWeights[Region](), Account()
    first, second = (Memory(OF_CONSTANTS, place(OF_CONSTANTS), ledger=account.ledger())
                     for _ in range(2))  # fmt: skip
    first.allocate(weights)
    second.allocate(weights)
    assert second.constants == first.constants
    assert not second.made
    first.release()
    assert not FREED
    for region, constant in zip(second.constants, CONSTANTS, strict=True):
        assert second.read(region).tobytes() == constant.tobytes()
    second.release()
    assert len(FREED) == 3
    assert account.use.total == 0


@pytest.mark.parametrize("number", range(4))
def test_a_buffer_that_is_refused_leaves_nothing(number: int) -> None:
    made = attrs.evolve(OF_CONSTANTS, arenas=(64,))
    account = Account()
    memory = Memory(made, as_planned(made), ledger=account.ledger())
    memory.refuses = number
    with pytest.raises(DeviceError, match=r"no (constant|the arena)"):
        memory.allocate(None)
    assert sorted(FREED) == sorted(r.name for r in memory.made)
    assert account.use.total == 0


class Commands(list[Callable[[], object]]):
    """What is to be done, in order."""

    def write(self, buffer: Array, array: Array) -> None:
        """Copy to the device."""
        self.append(lambda: np.copyto(buffer, array.reshape(-1).view(np.uint8)))

    def read(self, buffer: Array, array: Array) -> None:
        """Copy to the host."""
        self.append(lambda: np.copyto(array.reshape(-1).view(np.uint8), buffer))

    def submit(self) -> None:
        """All of it, at once."""
        for each in self:
            each()


class Recording(StagedRecording[Commands, Region]):
    """Kernels are interpreted."""

    def _profile(self) -> Any:
        return Unsupported("no timers")

    def __init__(self, plan: Plan, memory: Memory) -> None:
        self.kernels: list[Callable[[], object]] = []
        inputs, outputs = (
            [kind(np.zeros(i.shape, i.dtype.numpy), memory.new(i.name, i.nbytes, Use.STAGING))
             for i in ios]
            for kind, ios in ((CopiedInput[Commands], plan.inputs),
                              (CopiedOutput[Commands], plan.outputs))
        )  # fmt: skip
        sides: Any = (inputs, outputs)
        outline = Outline(Commands, *sides, _adding(self.kernels))
        super().__init__(plan, memory, outline, partial(_arrays, plan), lambda: None)

    def _bind_kernels(self) -> None:
        self.kernels[:] = [
            partial(interpret, d.kernel, d.groups,
                    [r.buffer.view(b.scalar.numpy) for r, b in zip(rs, d.kernel.buffers,
                    strict=True)])
            for d, rs in zip(self._planned, self._regions, strict=True)
        ]  # fmt: skip

    def _dispatch_alone(self, index: int) -> None:
        self.kernels[index]()

    def _end(self) -> None:
        """It is over when it was submitted."""

    def _release(self) -> None:
        super()._release()
        self._plan_memory.release()


def _adding(kernels: list[Callable[[], object]]) -> Callable[[Commands], None]:
    return lambda commands: commands.extend(kernels)


def _arrays(plan: Plan) -> Sequence[Array]:
    return [np.zeros(i.shape, i.dtype.numpy) for i in plan.outputs]


@pytest.mark.parametrize("guarded", [False, True])
def test_a_staged_recording_runs_lends_and_is_bound(guarded: bool) -> None:
    made = chain(33, 16)
    memory = Memory(made, as_planned(made), guarded=guarded)
    memory.allocate(None)
    recording = Recording(made, memory)
    x = np.arange(33, dtype=np.float32)
    recording.inputs[0][...] = x
    recording.run()
    assert (recording.outputs[0] == chain_expected(x)).all()
    assert recording.copies == (132, 132)
    lent = recording.lend(0)
    assert (lent is None) is guarded
    recording.inputs[0][...] = 2 * x
    recording.run()
    assert (recording.outputs[0] == chain_expected(2 * x)).all()
    if lent is not None:
        assert (lent == chain_expected(x)).all()
        inside = np.float32([5] * 33).view(np.uint8)
        memory.bound = {InputRef(0): Region("elsewhere", 132, inside, inside)}
        recording._regions = memory.bind(made.dispatches)
        recording._rebind()
        assert recording.copies == (0, 132)
        recording.run()
        assert (recording.outputs[0] == chain_expected(np.float32([5] * 33))).all()
    recording.close()
    assert len(FREED) == len(memory.made)


def test_a_buffer_over_host_memory_is_the_host_s() -> None:
    import threading

    from tflgpu.backend_kit.base_buffer import BaseBuffer, overlap

    class HostBuffer(BaseBuffer):
        def _write(self, data: Any) -> None:
            raise AssertionError("it is the host's")

        def _read(self, nbytes: int) -> Any:
            raise AssertionError("it is the host's")

        def _export(self) -> object:
            return self.host

    memory = np.zeros(64, np.uint8)
    one, other = (HostBuffer(threading.RLock(), None, 32, None) for _ in range(2))
    one.host, other.host = memory[:32], memory[16:48]
    one.write(np.arange(8, dtype=np.float32))
    found = np.zeros(4, np.float32)
    other.read(found)
    assert found.tolist() == [4, 5, 6, 7]
    assert overlap(one, other)
    one.close()
    assert one.host is None
    assert memory.any()
