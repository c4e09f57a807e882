"""`report`: the operators of a model that a device which is not here, or another delegate, would
run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

import attrs

from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.parts import Compiled
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_of import on_device, report_of, untimed
from tflgpu.compiler.report_values import OperatorReport, PartitionReport, Place, Refusal
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.devices.device_options import precision_on
from tflgpu.devices.targets import target_of
from tflgpu.errors import OptionError
from tflgpu.ir.graph import Graph
from tflgpu.lowering.reason import ReasonCode
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import Registry, registry
from tflgpu.profiles.file_operator import FileOperator, FileSubgraph
from tflgpu.profiles.rules import RuleTable
from tflgpu.profiles.table import Profile, get
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.model_file import ModelFile, OperatorInfo, SubgraphInfo
from tflgpu.tflite.read import read_model
from tflgpu.tflite.source import Source


@attrs.frozen
class Delegation:
    """Where the operators of a subgraph go.

    Attributes:
        parts: Operators on the GPU, by index, in the parts in which they run.
        reasons: Why the others stay on the CPU, by index.
        flaws: What goes wrong with operators that are taken, by index.
    """

    parts: tuple[tuple[int, ...], ...]
    reasons: Mapping[int, str]
    flaws: Mapping[int, Sequence[str]]


def delegated(
    subgraph: SubgraphInfo,
    rules: RuleTable,
    *,
    quantized: bool = True,
    max_partitions: int | None = None,
) -> Delegation:
    """Divide a subgraph as a delegate would. ``max_partitions`` is the table's unless given.

    As LiteRT does it (``tflite/delegates/utils.cc``, ``tflite/graph_info.cc``, August 2026): each
    operator is asked for, the operators are divided into subsets of one side each, always taking
    all that are ready before changing sides, and of the delegate's subsets those with the most
    operators are kept.
    """
    file_subgraph = FileSubgraph.of(subgraph, rules.half_constants)
    reasons: dict[int, str] = {}
    flaws: dict[int, Sequence[str]] = {}
    for op in subgraph.operators:
        operator = FileOperator(op, file_subgraph)
        if op.index in file_subgraph.halving:
            reasons[op.index] = "it makes f32 of a 16-bit constant, which the GPU reads as it is"
            continue
        why = rules.refusal(operator, quantized=quantized)
        if why:
            reasons[op.index] = why
        elif found := rules.flaws(operator):
            flaws[op.index] = found
    every = tuple(op.index for op in subgraph.operators)
    if set(reasons) == file_subgraph.halving and len(reasons) < len(every):
        # Nothing else reads them, so that they go along.
        return Delegation((every,), {}, flaws)
    parts = [
        part
        for part in _subsets(subgraph, lambda op: op.index not in reasons)
        if part[0] not in reasons
    ]
    most = rules.max_partitions if max_partitions is None else max_partitions
    largest = sorted(parts, key=lambda part: -len(part))  # a stable sort, as the original's is not
    for place, part in enumerate(largest[most:], most + 1):
        reasons |= dict.fromkeys(
            part,
            f"it would be taken, but its part of the graph ({_count(part)}) is number {place} by "
            f"size, and at most {most} may go to the GPU",
        )
    kept = [part for part in parts if part in largest[:most]]
    taken = {index for part in kept for index in part}
    left = {index: found for index, found in flaws.items() if index in taken}
    return Delegation(tuple(kept), dict(sorted(reasons.items())), left)


def _subsets(
    subgraph: SubgraphInfo, takes: Callable[[OperatorInfo], bool]
) -> list[tuple[int, ...]]:
    """Operators of one side each, in an order in which they can run.

    The first that is ready, in the file's order, decides which side a subset is of.
    """
    made = {i for op in subgraph.operators for i in op.outputs}
    ready = {t.index for t in subgraph.tensors if t.index not in made} | {-1}
    waiting = list(subgraph.operators)
    subsets: list[tuple[int, ...]] = []
    while waiting:
        side: bool | None = None
        subset: list[int] = []
        moved = True
        while moved:
            moved = False
            later = []
            for op in waiting:
                if not ready.issuperset(op.inputs) or side not in (None, takes(op)):
                    later.append(op)
                    continue
                side = takes(op)
                subset.append(op.index)
                ready.update(op.outputs)
                moved = True
            waiting = later
        if not subset:  # operators that wait for each other: no file that runs has them
            subset, waiting = [op.index for op in waiting], []
        subsets.append(tuple(subset))
    return subsets


def _count(part: Sequence[int]) -> str:
    return f"{len(part)} operator{'s' if len(part) > 1 else ''}"


#: Bytes to which every API's drivers let buffers be placed.
_ALIGNMENT = 256
_OURS = (
    "this is what tflgpu would run on such a GPU; what the delegate of a phone takes is said by "
    "the profiles tflite-gpu and litert-gpu"
)


@attrs.frozen(eq=False)
class ProfileResult:
    """How a profile would divide a model.

    Attributes:
        report: For people and programs.
        graph, compiled: Of a device's profile: what was compiled, and what became of it.
        delegation: Of another delegate's.
    """

    report: DelegationReport
    graph: Graph | None = None
    compiled: Compiled | None = None
    delegation: Delegation | None = None


def report(
    model: Source | ModelFile, profile: str | Profile, options: DelegateOptions | None = None
) -> DelegationReport:
    """Which operators of a model would be delegated, and why not the others; no device is opened.

        found = tflgpu.profiles.report("model.tflite", "adreno-740")
        print(found)

    Of a file with several subgraphs the main one is looked at.

    Args:
        model: A path, the bytes of a file, or one that was read.
        profile: The name of a shipped profile, or one of your own.
        options: Precision, numerics and limits on partitions, of a device's profile; of another
            delegate's only whether quantized models are allowed, and how many partitions.

    Raises:
        OptionError: there is no such profile; the error lists those that there are.
        ModelError: there is no such file, or it is no well-formed model.
        PluginError, GraphError: an installed plugin's op, pass or kernel rule broke its contract.
    """
    return judged(model, profile, options).report


def judged(
    model: Source | ModelFile,
    profile: str | Profile,
    options: DelegateOptions | None = None,
    plugins: Registry | None = None,
) -> ProfileResult:
    """As `report`, with what the report was made of.

    Raises:
        OptionError, ModelError, PluginError, GraphError: as `report`.
    """
    wanted = _profile(profile)
    file = model if isinstance(model, ModelFile) else read_model(model)
    if wanted.rules is not None:
        return _by_rules(file, wanted, wanted.rules, options)
    return _by_device(file, wanted, options or DelegateOptions(), plugins or registry())


def _profile(profile: str | Profile) -> Profile:
    if isinstance(profile, Profile):
        return profile
    if not isinstance(profile, str):
        raise OptionError(f"profile is a name or a Profile, not {type(profile).__name__}")
    return get(profile)


def _by_device(
    file: ModelFile, profile: Profile, options: DelegateOptions, known: Registry
) -> ProfileResult:
    caps, backend = profile.caps, profile.apis[0]
    assert caps is not None
    with closing(CpuSide(known, options)) as cpu:
        # Whether LiteRT, say, runs what nobody here defines: the shapes behind that are known then.
        graph = build_graph(file, 0, known.ops(), foreign=cpu.infer)
    target = target_of(backend, caps, _ALIGNMENT, known, options)
    compiled = compile_graph(graph, attrs.evolve(target, spares_broken_rules=True))
    left_out = (f"a kernel rule is left out: {why}" for why in compiled.broken_rules.values())
    report = on_device(
        report_of(graph, compiled),
        backend,
        f"{profile.title}, by its profile",
        precision_on(caps, options.wanted_precision).value,
        (*_said(profile), _OURS, *dict.fromkeys(left_out)),
    )
    return ProfileResult(untimed(report), graph, compiled)


def _by_rules(
    file: ModelFile, profile: Profile, rules: RuleTable, options: DelegateOptions | None
) -> ProfileResult:
    quantized = True if options is None else options.quantized_models_allowed
    most = None if options is None else options.max_delegated_partitions
    found = delegated(file.main, rules, quantized=quantized, max_partitions=most)
    names = {op.index: op.name for op in file.main.operators}
    report = DelegationReport(
        total_nodes=len(names),
        delegated_nodes=len(names) - len(found.reasons),
        refusals=tuple(Refusal(i, names[i], why) for i, why in found.reasons.items()),
        partitions=len(found.parts),
        backend=profile.name,
        device=profile.title,
        precision="f32",  # the default of the original's options: MAX_PRECISION first
        choice=(*_said(profile), *_flaws(found.flaws, names)),
        operators=_operators(file, profile, found),
        parts=tuple(PartitionReport(i, tuple(p), 0) for i, p in enumerate(found.parts)),
    )
    return ProfileResult(report, delegation=found)


def _operators(file: ModelFile, profile: Profile, found: Delegation) -> tuple[OperatorReport, ...]:
    parts = {index: number for number, part in enumerate(found.parts) for index in part}

    def names(tensors: Sequence[int]) -> tuple[str, ...]:
        return tuple(file.main.tensors[t].name if t >= 0 else "" for t in tensors)

    rows = []
    for op in file.main.operators:
        row = OperatorReport(op.index, op.name, names(op.inputs), names(op.outputs), Place.FOLDED)
        if op.index in found.reasons:
            why = found.reasons[op.index]
            row = attrs.evolve(row, place=Place.CPU, code=ReasonCode.UNSUPPORTED_FORM, reason=why)
        elif op.index in parts:
            row = attrs.evolve(
                row,
                place=Place.DEVICE,
                backend=profile.name,
                device=profile.title,
                partition=parts[op.index],
            )
        rows.append(row)
    return tuple(rows)


def _said(profile: Profile) -> tuple[str, ...]:
    return (f"judged by the profile {profile.name}: no device was opened", *profile.notes)


def _flaws(flaws: Mapping[int, Sequence[str]], names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(
        f"#{index} {names[index]} is taken, but {text}"
        for index, found in flaws.items()
        for text in found
    )
