"""Every builtin operator with every element type, one small model each, run by LiteRT and here:

    python -m tests.differential.element_types [PATTERN]

Prints what LiteRT runs and is refused here, and where the results differ, but for the models whose
result means nothing there (`tests.differential.undefined`): these are counted with the reason, as
is what LiteRT refuses and runs here. An operator's samples are the models, with one type in the
place of another. Results are those of LiteRT's own kernels or of XNNPACK's, which it takes by
default. Models run in child processes, so that LiteRT's ending one costs a line. bf16 and i2, of
which no interpreter takes inputs, come in and go out by CASTs.
"""

from __future__ import annotations

import collections
import enum
import faulthandler
import os
import pickle
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Union

import attrs
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # file_fields

import tflgpu
from ai_edge_litert import interpreter as litert
from file_fields import file_fields
from tflgpu.conformance.samples import SampleCase, materialize
from tflgpu.errors import TflgpuError
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ops.base import Arg, OpDef
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.constants import packed_range
from tflgpu.tflite.schema import BUILTIN_CODES
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.differential.undefined import DEFINED, REFUSED, UNDEFINED, Undefined, undefined

TYPES = [t for t in DType if t not in (DType.STRING, DType.RESOURCE, DType.VARIANT)]
SCALED = (DType.I8, DType.U8, DType.I16, DType.I4)
#: What comes in and goes out by a CAST, and as which type.
CAST_FROM = {DType.BF16: DType.F32, DType.I2: DType.F32}
#: Relative to the largest result, by the size of a real number.
NEAR = {2: 4e-3, 4: 3e-4, 8: 1e-9}

Result = Union[list[Array], str]
Model = tuple[bytes, list[int], list[Array], list[int]]


def scale_of(dtype: DType) -> Quantization:
    """A scale with which numbers around 1 fill the type."""
    zero = {DType.I8: 3, DType.U8: 131}.get(dtype, 0)
    return Quantization((2.0 ** {DType.I16: -11, DType.I4: -1}.get(dtype, -5),), (zero,))


def draw(dtype: DType, arg: Arg, rng: np.random.Generator, *, scaled: bool) -> Array:
    """Numbers of a sample's range, or of all that a type stores where they have a scale."""
    held = DType.F32 if dtype is DType.BF16 else dtype.unpacked
    if held is DType.BOOL:
        return rng.random(arg.shape) < 0.5
    if not held.is_int:
        drawn = rng.uniform(arg.low, arg.high, arg.shape)
        with np.errstate(over="ignore"):  # f16 makes infinities of large ones
            return np.asarray(
                drawn + 1j * drawn[::-1] if held.numpy.kind == "c" and arg.shape else drawn
            ).astype(held.numpy)
    info = np.iinfo(held.numpy)
    low, high = packed_range(dtype) if dtype.packed else (int(info.min), int(info.max))
    if scaled:
        low, high = max(low, -3000), min(high, 3000)
    else:
        low, high = max(low, int(arg.low)), min(high, max(int(arg.low), int(np.ceil(arg.high))))
    return rng.integers(low, max(low, high) + 1, arg.shape).astype(held.numpy)


def stored(data: Array, dtype: DType) -> Array:
    """Contents of a constant as a file has them."""
    if dtype is DType.BF16:
        return (np.asarray(data, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.asarray(data).astype(dtype.unpacked.numpy)


def build(op: OpDef, case: SampleCase, old: DType, new: DType, *, scaled: bool) -> Model:
    """A sample with one type in the place of another."""
    rng = np.random.default_rng(zlib.crc32(op.name.encode()))
    fields, bodies = file_fields(case)
    fields = {
        k: new.tflite if k.endswith("type") and v == old.tflite else v for k, v in fields.items()
    }
    quant = scale_of(new) if scaled else None
    tensors: list[TensorSpec] = []
    before: list[OperatorSpec] = []
    after: list[OperatorSpec] = []
    inputs, feeds, operands, results, outputs = [], [], [], [], []

    def tensor(
        name: str,
        shape: tuple[int, ...],
        dtype: DType,
        data: Array | None = None,
        *,
        v: bool = False,
    ) -> int:
        own = quant if dtype is new and scaled else None
        tensors.append(TensorSpec(name, shape, dtype, data, own, is_variable=v))
        return len(tensors) - 1

    def cast(source: int, target: int) -> OperatorSpec:
        types = {
            "in_data_type": tensors[source].dtype.tflite,
            "out_data_type": tensors[target].dtype.tflite,
        }
        return OperatorSpec("CAST", types, [source], [target], version=7)

    for i, (value, arg) in enumerate(zip(case.node.inputs, case.sample.args, strict=True)):
        if value is None or arg is None:
            operands.append(-1)
            continue
        dtype = new if value.dtype is old else value.dtype
        data = value.data if value.data is not None else case.arrays[value.id]
        if dtype is not value.dtype and arg.data is None:
            data = draw(dtype, arg, rng, scaled=scaled)
        if value.data is not None:
            operands.append(tensor(f"c{i}", value.shape, dtype, stored(data, dtype)))
        elif value.is_variable:
            operands.append(tensor(f"v{i}", value.shape, dtype, v=True))
        else:
            given = CAST_FROM.get(dtype, dtype)
            inputs.append(tensor(f"x{i}", value.shape, given))
            feeds.append(np.asarray(data).astype(given.unpacked.numpy))
            operands.append(inputs[-1])
            if given is not dtype:
                operands[-1] = tensor(f"b{i}", value.shape, dtype)
                before.append(cast(inputs[-1], operands[-1]))
    for i, value in enumerate(case.node.outputs):
        dtype = new if value.dtype is old else value.dtype
        results.append(tensor(f"y{i}", value.shape, dtype))
        outputs.append(results[-1])
        if dtype in CAST_FROM:
            outputs[-1] = tensor(f"z{i}", value.shape, CAST_FROM[dtype])
            after.append(cast(results[-1], outputs[-1]))
    version = max(op.file.max_version, case.sample.version)
    itself = OperatorSpec(op.name, fields, operands, results, version=version)
    spec = ModelSpec(tensors, [*before, itself, *after], inputs, outputs, subgraphs=bodies)
    return write_model(spec), inputs, feeds, outputs


def run(interpreter: Any, inputs: list[int], feeds: list[Array], outputs: list[int]) -> list[Array]:
    """One run."""
    interpreter.allocate_tensors()
    for index, feed in zip(inputs, feeds, strict=True):
        interpreter.set_tensor(index, feed)
    interpreter.invoke()
    return [np.array(interpreter.get_tensor(i)) for i in outputs]


def by_litert(content: bytes, *rest: Any) -> list[Array]:
    """By LiteRT's own kernels."""
    kind = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    return run(litert.Interpreter(model_content=content, experimental_op_resolver_type=kind), *rest)


def by_xnnpack(content: bytes, *rest: Any) -> list[Array]:
    """By LiteRT as it is by default."""
    return run(litert.Interpreter(model_content=content), *rest)


def by_references(content: bytes, *rest: Any) -> list[Array]:
    """By the references, and LiteRT for what is not defined."""
    delegate = tflgpu.GpuDelegate(backend="cpu_ref")
    return run(tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]), *rest)


def each_in_child(fn: Callable[..., list[Array]], models: Sequence[Model]) -> list[Result]:
    """What a function gives for each model, or a text that says why it gives nothing."""
    found: list[Result] = []
    while len(found) < len(models):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            faulthandler.disable()  # LiteRT may end it, of which the parent tells
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            with os.fdopen(writer, "wb") as sink:
                for model in models[len(found) :]:
                    try:
                        result: Result = fn(*model)
                    except Exception as error:  # noqa: BLE001
                        result = f"{type(error).__name__}: {error}"
                    content = pickle.dumps(result)
                    sink.write(struct.pack("<I", len(content)) + content)
                    sink.flush()
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as source:
            while header := source.read(4):
                found.append(pickle.loads(source.read(struct.unpack("<I", header)[0])))
        _, status = os.waitpid(child, 0)
        if status:
            found.append(f"the process ended: {status}")
    return found


def apart(found: Array, wanted: Array) -> bool:
    """Whether results differ by more than one step or rounding."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return True
    if wanted.dtype.kind not in "fc":
        return bool(np.any(found != wanted))
    with np.errstate(all="ignore"):
        size = np.nanmax(np.abs(np.where(np.isfinite(wanted), wanted, 0)), initial=1)
        near = NEAR[wanted.real.dtype.itemsize]
        return not np.allclose(found, wanted, rtol=near, atol=near * size, equal_nan=True)


def models_of(op: OpDef) -> Iterator[tuple[str, Model]]:
    """An operator's first samples of different types, with each type in the place of each."""
    seen: set[Any] = set()
    for sample in op.samples():
        case = materialize(op, sample)
        values = [v for v in (*case.node.inputs, *case.node.outputs) if v is not None]
        key = tuple(v.dtype for v in values)
        if key in seen or len(seen) == 3 or sum(v.elements for v in values) > 40_000:
            continue
        seen.add(key)
        for old in dict.fromkeys(key):
            for new in TYPES:
                for scaled in (False, True) if new in SCALED and old is DType.F32 else (False,):
                    label = f"{sample.id} {old.value}->{new.value}{' scaled' * scaled}"
                    try:
                        yield label, build(op, case, old, new, scaled=scaled)
                    except (TflgpuError, ValueError, TypeError, OverflowError):
                        continue  # no file has such a constant


class Outcome(enum.Enum):
    """How a model fares here and in LiteRT."""

    SAME = "the same result"
    NEITHER = "both refuse"
    ONLY_HERE = "LiteRT refuses, runs here"
    UNDEFINED_REFUSED = "means nothing in LiteRT, refused here"
    UNDEFINED_RUN = "means nothing in LiteRT, here as the op is defined"
    REFUSED = "LiteRT runs, REFUSED here"
    OTHER = "OTHER RESULTS"


#: What should not be.
WRONG = (Outcome.REFUSED, Outcome.OTHER)


@attrs.frozen
class Fare:
    """How one model fares; ``why`` of a refusal here, ``entry`` where its result means nothing."""

    op: str
    label: str
    outcome: Outcome
    why: str = ""
    entry: Undefined | None = None


def fare(op: str, label: str, model: Model, found: Result, wanted: Result) -> Fare:
    """What of a model's two results is to be said."""
    if isinstance(wanted, str):
        only = not isinstance(found, str)
        return Fare(op, label, Outcome.ONLY_HERE if only else Outcome.NEITHER, why=wanted)
    if isinstance(found, str):
        entry = undefined(op, label, REFUSED)
        outcome = Outcome.REFUSED if entry is None else Outcome.UNDEFINED_REFUSED
        return Fare(op, label, outcome, found, entry)
    if not differ(found, wanted):
        return Fare(op, label, Outcome.SAME)
    entry = undefined(op, label, DEFINED)
    if entry is not None:
        return Fare(op, label, Outcome.UNDEFINED_RUN, entry=entry)
    (other,) = each_in_child(by_xnnpack, [model])
    same = not isinstance(other, str) and not differ(found, other)
    return Fare(op, label, Outcome.SAME if same else Outcome.OTHER)


def differ(found: Sequence[Array], wanted: Sequence[Array]) -> bool:
    """Whether any of a model's results do."""
    return any(apart(a, b) for a, b in zip(found, wanted, strict=True))


def walk(pattern: str = "") -> Iterator[Fare]:
    """All models of the operators whose names a pattern is found in."""
    rank = builtin_ops()["RANK"]
    by_references(*next(models_of(rank))[1])  # so that children find everything imported
    for name, op in sorted(builtin_ops().items()):
        if op.is_custom or name not in BUILTIN_CODES or not re.search(pattern, name):
            continue
        named = list(models_of(op))
        models = [model for _, model in named]
        found, wanted = each_in_child(by_references, models), each_in_child(by_litert, models)
        for (label, model), ours, theirs in zip(named, found, wanted, strict=True):
            yield fare(name, label, model, ours, theirs)


def main(pattern: str = "") -> None:
    """Print the table."""
    counts: collections.Counter[Outcome] = collections.Counter()
    reasons: collections.Counter[Undefined] = collections.Counter()
    only: dict[str, set[str]] = collections.defaultdict(set)
    for each in walk(pattern):
        counts[each.outcome] += 1
        if each.entry is not None:
            reasons[each.entry] += 1
        if each.outcome is Outcome.ONLY_HERE:
            only[each.op].add(each.label.split("->")[1])
        if each.outcome in WRONG:
            print(f"{each.op} {each.label}: {each.outcome.value} {each.why[:120]}", flush=True)
    for op, types in only.items():
        print(f"only here: {op} {' '.join(sorted(types))}")
    for entry in UNDEFINED:
        print(f"{reasons[entry]:5d} {entry.op} ({entry.models}) {entry.here}: LiteRT {entry.why}")
    for outcome in Outcome:
        print(f"{counts[outcome]:5d} {outcome.value}")


if __name__ == "__main__":
    main(*sys.argv[1:])
