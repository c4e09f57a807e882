"""`Builder`: how a kernel is written.

    k = Builder("scale", workgroup=(64, 1, 1))
    src = k.buffer("src", Scalar.F32, 4, "read")
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    i = k.let(k.global_id(0), "i")
    with k.if_(i < count):
        k.store(dst, i, k.load(src, i) * 2.0)
    kernel = k.build()

Loops over Python's `range` unroll; `k.loop` makes a loop in the kernel.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from tflgpu.language import make
from tflgpu.language.author import refused
from tflgpu.language.builder_base import BuilderBase
from tflgpu.language.check import check, memory_problem, workgroup_problem
from tflgpu.language.tree import (
    Assign,
    Barrier,
    Break,
    Builtin,
    Cast,
    Const,
    Expr,
    For,
    If,
    Kernel,
    KernelBuffer,
    Let,
    Load,
    Name,
    Operand,
    Return,
    SharedArray,
    SharedLoad,
    SharedStore,
    Stmt,
    Store,
    Var,
    Vec,
)
from tflgpu.language.types import F32, I32, Scalar, Size3, Type
from tflgpu.language.unique import unique
from tflgpu.language.variables import Reads, Variable
from tflgpu.language.walk import postorder, walk

T = TypeVar("T")


class Builder(BuilderBase):
    """Collects statements in order; `build` checks them and gives the `Kernel`."""

    def __init__(self, name: str, workgroup: Size3) -> None:
        self.name = name
        self._sound(workgroup_problem(workgroup))
        self.workgroup = workgroup
        self._buffers: list[KernelBuffer] = []
        self._shared: list[SharedArray] = []
        self._blocks: list[list[Stmt]] = [[]]
        self._idents: dict[str, int] = {}
        self._last_if: list[int | None] = [None]
        #: What expressions read of variables.
        self.reads = Reads(name)
        #: What views have done with it that its kernel does not show ("chain": ran what joined a
        #: store).
        self.marks: set[str] = set()
        #: What a kernel has made besides what it stores now, by number.
        self.made: dict[int, Expr] = {}

    # Parameters and shared memory

    def buffer(self, name: str, scalar: Scalar, width: int, access: str) -> KernelBuffer:
        """Add a buffer parameter; parameters are bound in the order they were added."""
        buffer = KernelBuffer(self._fresh(name), scalar, width, access)
        self._sound(memory_problem(buffer))
        self._buffers.append(buffer)
        return buffer

    def shared(self, name: str, type: Type, count: int) -> SharedArray:
        """Add an array that the workgroup shares."""
        array = SharedArray(self._fresh(name), type, count)
        self._sound(memory_problem(array))
        self._shared.append(array)
        return array

    def _sound(self, problem: str | None) -> None:
        if problem:
            raise refused(f"{self.name}: {problem}")

    # Where this invocation is

    def global_id(self, axis: int) -> Expr:
        """This invocation among all, along ``axis``."""
        return self._id("global_id", axis)

    def local_id(self, axis: int) -> Expr:
        """This invocation within its workgroup, along ``axis``."""
        return self._id("local_id", axis)

    def group_id(self, axis: int) -> Expr:
        """This workgroup among all, along ``axis``."""
        return self._id("group_id", axis)

    def _id(self, kind: str, axis: int) -> Expr:
        if axis not in (0, 1, 2):
            raise refused(f"{self.name}: {kind}({axis!r}); the axes are 0, 1 and 2")
        return Builtin(kind, axis)

    # Values

    def const(self, value: float | bool, type: Type) -> Expr:
        """A literal; a vector type has it in every lane."""
        return make.splat(make.wrap(value, type), type.width)

    def f32(self, value: float, width: int = 1) -> Expr:
        """An f32 literal."""
        return self.const(value, F32.with_width(width))

    def i32(self, value: int) -> Expr:
        """An i32 literal."""
        return Const(I32, int(value))

    def vec(self, parts: Sequence[Operand]) -> Expr:
        """A vector of the given scalars."""
        first = next((p for p in parts if isinstance(p, Expr)), None)
        if first is None:
            raise refused("vec: give at least one part as an expression")
        exprs = tuple(make.wrap(p, first.type) for p in parts)
        if any(e.type != first.type.with_width(1) for e in exprs):
            raise refused(f"vec of {', '.join(str(e.type) for e in exprs)}")
        return Vec(first.type.with_width(len(exprs)), exprs) if len(exprs) > 1 else exprs[0]

    def splat(self, value: Expr, width: int) -> Expr:
        """A vector with ``value`` in every lane."""
        return make.splat(make.read(value), width)

    def cast(self, value: Expr, scalar: Scalar) -> Expr:
        """Convert lanes (float to integer truncates)."""
        return make.cast(value, scalar)

    def bitcast(self, value: Expr, scalar: Scalar) -> Expr:
        """Read the bits of 32-bit lanes as another type."""
        return make.bitcast(value, scalar)

    def select(self, cond: Expr, a: Operand, b: Operand) -> Expr:
        """``a`` where ``cond`` holds, else ``b``."""
        return make.select(cond, a, b)

    def call(self, fn: str, *args: Operand) -> Expr:
        """A function of `tflgpu.language.functions.FUNCTIONS`."""
        return make.call(fn, *args)

    def is_nan(self, x: Expr) -> Expr:
        """Whether float lanes are NaN: one boolean a lane."""
        return make.call("isnan", x)

    def fma(self, a: Operand, b: Operand, c: Operand) -> Expr:
        """``a * b + c``; scalars are splatted to the widest operand."""
        return make.call("fma", a, b, c)

    def dot(self, a: Expr, b: Expr) -> Expr:
        """Sum of the products of two vectors' lanes."""
        return make.call("dot", a, b)

    def min(self, a: Operand, b: Operand) -> Expr:
        """The smaller, lane by lane; of floats NaN if either is one."""
        return make.binary("min", a, b)

    def max(self, a: Operand, b: Operand) -> Expr:
        """The larger, lane by lane; of floats NaN if either is one."""
        return make.binary("max", a, b)

    def clamp(self, x: Expr, low: Operand, high: Operand) -> Expr:
        """``x`` limited to [low, high]; a NaN stays one."""
        return self.min(self.max(x, low), high)

    # Memory

    def load(self, buffer: KernelBuffer, index: Operand, as_scalar: Scalar | None = None) -> Expr:
        """Element ``index``; f16 is read as f32 with ``as_scalar=Scalar.F32`` (exact, and
        possible on devices without f16 arithmetic)."""
        return self._load(buffer, index, as_scalar, lane=False)

    def load_lane(
        self, buffer: KernelBuffer, index: Operand, as_scalar: Scalar | None = None
    ) -> Expr:
        """One lane, ``index`` counting over the lanes of all elements."""
        return self._load(buffer, index, as_scalar, lane=True)

    def _load(
        self, buffer: KernelBuffer, index: Operand, as_scalar: Scalar | None, lane: bool
    ) -> Expr:
        if buffer.access == "write":
            raise refused(f"{self.name}: {buffer.name} is write-only")
        kind = buffer.value_type.with_width(1) if lane else buffer.value_type
        loaded: Expr = Load(kind, buffer, self._index(index), lane and buffer.width > 1)
        if buffer.access == "read_write":
            self.reads.load(loaded, buffer.name)
        # Kept as a Cast right over the Load: a printer may fuse the two (vload_half).
        if as_scalar is not None and as_scalar is not kind.scalar:
            loaded = Cast(kind.with_scalar(as_scalar), loaded)
        return loaded

    def store(self, buffer: KernelBuffer, index: Operand, value: Expr) -> None:
        """Write element ``index``."""
        self._store(buffer, index, value, lane=False)

    def store_lane(self, buffer: KernelBuffer, index: Operand, value: Expr) -> None:
        """Write one lane, ``index`` counting over the lanes of all elements."""
        self._store(buffer, index, value, lane=True)

    def _store(self, buffer: KernelBuffer, index: Operand, value: Expr, lane: bool) -> None:
        if buffer.access == "read":
            raise refused(f"{self.name}: {buffer.name} is read-only")
        want = buffer.value_type.with_width(1) if lane else buffer.value_type
        value = make.read(value)
        narrows = want.scalar is Scalar.F16 and value.type == want.with_scalar(Scalar.F32)
        if value.type != want and not narrows:
            raise refused(f"{self.name}: {value.type} stored in {buffer.name} of {want}")
        self.emit(Store(buffer, self._index(index), value, lane and buffer.width > 1))
        if buffer.access == "read_write":
            self.reads.set(buffer.name)

    def load_shared(self, array: SharedArray, index: Operand) -> Expr:
        """Element ``index`` of a shared array."""
        loaded = SharedLoad(array.type, array, self._index(index))
        self.reads.load(loaded, array.name)
        return loaded

    def store_shared(self, array: SharedArray, index: Operand, value: Expr) -> None:
        """Write element ``index`` of a shared array."""
        value = make.read(value)
        if value.type != array.type:
            raise refused(f"{self.name}: {value.type} stored in {array.name} of {array.type}")
        self.emit(SharedStore(array, self._index(index), value))
        self.reads.set(array.name)

    def _index(self, index: Operand) -> Expr:
        expr = make.wrap(index, I32)
        if expr.type != I32:
            raise refused(f"{self.name}: an index is i32, not {expr.type}")
        return expr

    # Statements

    def let(self, value: Expr, name: str = "t") -> Expr:
        """Compute a value once and name it; constants and names are given back as they are. Of a
        variable, what it has now."""
        value = make.read(value)
        if isinstance(value, Const) or (isinstance(value, Name) and not value.mutable):
            return value
        ident = self._fresh(name)
        self.emit(Let(ident, value))
        return Name(value.type, ident)

    def var(self, value: Expr, name: str = "v") -> Variable:
        """A variable with its first value; ``x += 1``, `set`, `add_to` and `fma_to` change it."""
        value = make.read(value)
        ident = self._fresh(name)
        self.emit(Var(ident, value))
        return Variable(Name(value.type, ident, mutable=True), self)

    def set(self, target: Variable, value: Operand) -> None:
        """Assign a variable."""
        name = self._own(target)
        self._set(name, make.splat(make.wrap(value, name.type), name.type.width))

    def add_to(self, target: Variable, value: Operand) -> None:
        """``target += value``."""
        name = self._own(target)
        self._set(name, make.binary("add", name, value))

    def fma_to(self, target: Variable, a: Operand, b: Operand) -> None:
        """``target += a * b``."""
        name = self._own(target)
        self._set(name, make.call("fma", a, b, name))

    def _own(self, target: Variable) -> Name:
        if type(target) is not Variable or target.k is not self:
            raise refused(
                f"{self.name}: {getattr(target, 'ident', target)} is not a variable of it"
            )
        return target.target

    def _set(self, name: Name, value: Expr) -> None:
        if value.type is not name.type and value.type != name.type:
            raise refused(f"{self.name}: {value.type} assigned to {name.ident}: {name.type}")
        self.emit(Assign(name, value))
        self.reads.set(name.ident)

    @contextmanager
    def if_(self, cond: Expr) -> Iterator[None]:
        """``with k.if_(cond):`` the statements inside run where ``cond`` holds."""
        cond = make.condition(cond)
        if cond.type.scalar is not Scalar.BOOL or cond.type.width != 1:
            raise refused(f"{self.name}: a condition is one boolean, not {cond.type}")
        if self.reads.known:
            self.reads.check(postorder([cond]))
        self.reads.enter()
        body = yield from self._block(None)
        self.reads.leave()
        self._blocks[-1].append(If(cond, body))
        self._last_if[-1] = len(self._blocks[-1]) - 1

    @contextmanager
    def else_(self) -> Iterator[None]:
        """``with k.else_():`` right after an `if_`."""
        at = self._last_if[-1]
        if at is None or at != len(self._blocks[-1]) - 1:
            raise refused(f"{self.name}: else_ without an if_ right before it")
        self.reads.enter(is_else=True)
        body = yield from self._block(None)
        self.reads.leave()
        before = self._blocks[-1][at]
        assert isinstance(before, If)
        self._blocks[-1][at] = If(before.cond, before.then, body)
        self._last_if[-1] = None

    @contextmanager
    def loop(
        self,
        start: Operand,
        stop: Operand,
        step: int = 1,
        *,
        name: str = "i",
        unroll: bool | None = None,
    ) -> Iterator[Expr]:
        """``with k.loop(0, n) as i:`` the index is an i32; ``unroll`` is that of `For`."""
        if step <= 0:
            raise refused(f"{self.name}: a loop's step is positive, not {step}")
        first, end = self._index(start), self._index(stop)
        if self.reads.known:
            self.reads.check(postorder([first, end]))
        self.reads.enter(is_loop=True)
        index = Name(I32, self._fresh(name))
        body = yield from self._block(index)
        self.reads.leave()
        self._blocks[-1].append(For(index, first, end, step, body, unroll))

    def break_(self) -> None:
        """Leave the innermost loop."""
        self.emit(Break())

    def return_(self) -> None:
        """End this invocation; no barrier may follow in the kernel."""
        self.emit(Return())

    def barrier(self) -> None:
        """Wait for the whole workgroup; shared writes before it are seen after it."""
        self.emit(Barrier())
        for array in self._shared:  # other invocations' stores are seen from here on
            self.reads.set(array.name)

    def emit(self, stmt: Stmt) -> None:
        """Append a statement, which holds no block, to the current block.

        Raises:
            KernelError: it uses what read a variable that was set since.
        """
        if self.reads.known:
            self.reads.check(walk(stmt).order)
        self._blocks[-1].append(stmt)

    @property
    def begun(self) -> Hashable | None:
        """All that what is written next may depend on: equal for kernels that were begun alike.
        None where something is written already."""
        if self._blocks != [[]]:
            return None
        names = tuple(self._idents.items())
        return self.name, self.workgroup, tuple(self._buffers), tuple(self._shared), names

    @property
    def size(self) -> int:
        """How many statements it has, not counting those in blocks."""
        return len(self._blocks[0])

    def build(self) -> Kernel:
        """The finished kernel, checked; one of equal content that exists already is given back.

        Raises:
            KernelError: it breaks a rule of the language.
        """
        if len(self._blocks) != 1:
            raise refused(f"{self.name}: built inside an open block")
        kernel = unique(
            Kernel(
                self.name,
                self.workgroup,
                tuple(self._buffers),
                tuple(self._shared),
                tuple(self._blocks[0]),
            )
        )
        check(kernel)
        return kernel

    def _block(self, given: T) -> Generator[T, None, tuple[Stmt, ...]]:
        self._blocks.append([])
        self._last_if.append(None)
        yield given
        self._last_if.pop()
        return tuple(self._blocks.pop())

    def _fresh(self, name: str) -> str:
        count = self._idents.get(name, 0)
        ident = f"{name}_{count}" if count else name
        while ident in self._idents:
            count += 1
            ident = f"{name}_{count}"
        self._idents[name] = count + 1
        self._idents.setdefault(ident, 1)
        return ident
