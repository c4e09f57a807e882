"""`tflgpu inspect`: a model's operators, and where each would run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from tflgpu.cli import console
from tflgpu.cli.memory_table import show_memory
from tflgpu.cli.models import Backend, Device, Model, Numerics, index_or_name
from tflgpu.cli.operator_table import (
    CPU,
    DEVICE,
    FOLDED,
    HOST,
    NOWHERE,
    PLACES,
    Row,
    Shapes,
    brief,
    place_of,
    show_rows,
)
from tflgpu.cli.profiles import ProfileName
from tflgpu.cli.stand_in import judge
from tflgpu.compiler.parts import Compiled
from tflgpu.compiler.references import reference_support
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_of import report_of
from tflgpu.compiler.report_rows import notes
from tflgpu.compiler.report_values import OperatorReport, Place
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.errors import OptionError
from tflgpu.ir.graph import Graph
from tflgpu.ops.unknown import ForeignOp, UnknownOp
from tflgpu.options import CPU as CPU_ONLY
from tflgpu.options import DelegateOptions, numerics_of
from tflgpu.plugins.registry import registry
from tflgpu.profiles.report import judged as by_profile
from tflgpu.runtime.opening import compiled_on
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.model_file import ModelFile, SubgraphInfo
from tflgpu.tflite.read import read_model
from tflgpu.tools.metadata import metadata
from tflgpu.tools.metadata_values import ModelMetadata

_PLACES = {Place.DEVICE: DEVICE, Place.CPU: CPU, Place.FOLDED: FOLDED}


def inspect(
    model: Model,
    backend: Backend = None,
    device: Device = None,
    numerics: Numerics = None,
    profile: ProfileName = None,
    signature: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="What this signature runs.  [default: the main part]"),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="List these only: device, folded, cpu, host, nowhere."),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Show what it would take of each device's memory.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For other programs.")] = False,
) -> None:
    """Show a model's inputs, outputs and operators, and where each would run."""
    if backend == CPU_ONLY:
        raise OptionError("inspect asks what a GPU backend takes; the CPU takes all the rest")
    if profile is not None and (backend is not None or device is not None):
        raise OptionError("--as is for a device that is not here; leave out --backend and --device")
    place = None if only is None else place_of(only)
    file = read_model(str(model))
    number = 0 if signature is None else _subgraph_of(file, signature)
    if number and (memory or profile is not None):
        raise OptionError("--signature is for devices that are here; leave out --as and --memory")
    main = file.subgraphs[number]
    if memory:
        if profile is not None:
            raise OptionError("--memory is for devices that are here; leave out --as")
        show_memory(model, backend, device, numerics, as_json=as_json)
        return
    judged = (
        _by_device(file, number, backend, device, numerics)
        if profile is None
        else _by_profile(file, profile, numerics)
    )
    report, note = judged.report, judged.note
    known = () if profile is None else report.choice
    on = f"{report.backend} ({report.device}, {report.precision})"
    if profile is not None and report.backend == profile.strip().lower():  # another delegate's
        on = f"the rules of {report.device}"
    meta = metadata(str(model))
    rows = _rows(main, judged)
    totals = {k: n for k in PLACES if (n := sum(r.where == k for r in rows))}
    counted = ", ".join(f"{n} {k}" for k, n in totals.items()) or "none"
    judged_by = f"{len(rows)} operators judged by {on}: {counted}"
    if place is not None:
        rows = [row for row in rows if row.where == place]
    if as_json:
        console.show_json(
            {
                "model": str(model),
                "description": file.description,
                "metadata": None if meta is None else _metadata_json(meta),
                "subgraphs": len(file.subgraphs),
                "inputs": [_tensor_json(main, i) for i in main.inputs],
                "outputs": [_tensor_json(main, i) for i in main.outputs],
                "signatures": [_signature_json(s) for s in file.signatures],
                "judged_by": on,
                "note": note,
                "notes": list(known),
                "operators": [attrs.asdict(r) for r in rows],
                "totals": totals,
            }
        )
        return
    _show_tensors(file, number, model, judged.shapes, meta)
    show_rows(rows)
    # A stand-in for a device is not chosen by options, and its times are of no real device.
    for line in () if profile is not None or note else notes(report):
        console.say(line)
    if note:
        console.warn(note)
    for line in known:
        console.say(line)
    console.say(judged_by)
    if NOWHERE in totals:
        console.say("The model cannot run: see the operators that run nowhere")


@attrs.frozen(eq=False)
class _Judged:
    """A model as it would be delegated.

    Attributes:
        report: Where its operators go.
        elsewhere: Operators that the host runs or nothing does, by index: the place, and why.
        note: What to warn of.
        shapes: Of tensors, as they were inferred.
    """

    report: DelegationReport
    elsewhere: Mapping[int, tuple[str, str]] = attrs.field(factory=dict)
    note: str = ""
    shapes: Shapes = attrs.field(factory=dict)


def _subgraph_of(file: ModelFile, key: str) -> int:
    found = [s.subgraph for s in file.signatures if s.key == key]
    if not found:
        known = ", ".join(s.key for s in file.signatures) or "none"
        raise OptionError(f"--signature {key}: the model has {known}")
    return found[-1]


def _by_device(
    file: ModelFile, number: int, backend: str | None, device: str | None, numerics: str | None
) -> _Judged:
    # Whether LiteRT, say, runs ops without a definition here: the shapes behind them are known
    # then.
    cpu = CpuSide(registry(), DelegateOptions())
    graph = build_graph(file, number, registry().ops(), foreign=cpu.infer)
    cpu.close()
    delegate, note = judge(
        backend, index_or_name(device), numerics_of("--numerics", numerics or "float")
    )
    with delegate:
        compiled = compiled_on(graph, delegate.provider)
        report = delegate.provider.usable().signed(report_of(graph, compiled))
    return _Judged(report, _elsewhere(compiled), note, _shapes(graph))


def _shapes(graph: Graph) -> Shapes:
    return {v.id: v.shape if v.shape_known else None for v in graph.values.values()}


def _by_profile(file: ModelFile, profile: str, numerics: str | None) -> _Judged:
    options = (
        None
        if numerics is None
        else DelegateOptions(quantized_numerics=numerics_of("--numerics", numerics))
    )
    found = by_profile(file, profile, options)
    if found.graph is None or found.compiled is None:
        return _Judged(found.report)
    return _Judged(found.report, _elsewhere(found.compiled), shapes=_shapes(found.graph))


def _elsewhere(compiled: Compiled) -> dict[int, tuple[str, str]]:
    ops = registry().ops()
    found = {}
    for node in (n for part in compiled.parts if not part.delegated for n in part.nodes):
        no = None if isinstance(node.attrs, ForeignOp) else reference_support(node, ops)
        if isinstance(node.attrs, UnknownOp) and node.attrs.host:
            place = HOST, node.attrs.reason if no is None else no.reason
        elif no is not None:
            place = NOWHERE, no.reason
        else:
            continue
        found.update(dict.fromkeys(node.origins, place))
    return found


def _rows(main: SubgraphInfo, judged: _Judged) -> Sequence[Row]:
    tensors, report = main.tensors, judged.report
    in_floats = {left.node: left.reason for left in report.in_floats}
    known = {row.node: row for row in report.operators}

    def shown(indices: Sequence[int]) -> tuple[str, ...]:
        return tuple("-" if i < 0 else brief(tensors[i], judged.shapes) for i in indices)

    rows = []
    for o in main.operators:
        # Operators on constants have no row in a report.
        found = known.get(o.index) or OperatorReport(o.index, o.name, place=Place.FOLDED)
        left = in_floats.get(o.index, "")
        where, reason = judged.elsewhere.get(o.index, (_PLACES[found.place], found.reason))
        rows.append(
            Row(
                o.index,
                o.name,
                o.version,
                shown(o.inputs),
                shown(o.outputs),
                where,
                found.partition,
                reason,
                "integers" if o.index in report.integers else "floats" if left else "",
                left,
                found.code.value if found.code is not None and reason else "",
                found.seconds,
                found.gain,
            )
        )
    return rows


def _tensor_json(main: SubgraphInfo, index: int) -> dict[str, Any]:
    info = main.tensors[index]
    quant = info.quantization
    return {
        "index": index,
        "name": info.name,
        "dtype": info.dtype.value,
        "shape": list(info.shape),
        "shape_signature": list(info.shape_signature),
        "scale": [] if quant is None else list(map(float, quant.scale)),
        "zero_point": [] if quant is None else list(map(int, quant.zero_point)),
    }


def _signature_json(signature: Any) -> dict[str, Any]:
    inputs, outputs = dict(signature.inputs), dict(signature.outputs)
    return {"key": signature.key, "inputs": inputs, "outputs": outputs}


def _metadata_json(meta: ModelMetadata) -> dict[str, Any]:
    return attrs.asdict(meta, filter=lambda field, value: field.name != "read")


def _metadata_lines(meta: ModelMetadata | None) -> Iterator[str]:
    """The author's words on the model and on its tensors, as far as there are any."""
    if meta is None:
        return
    known = ("name", "version", "author", "license", "description")
    said = [f"{field} {text}" for field in known if (text := getattr(meta, field))]
    yield f"metadata: {'; '.join(said) or 'of tensors only'}"
    for kind, tensors in (("input", meta.inputs), ("output", meta.outputs)):
        for number, tensor in enumerate(tensors):
            parts = [tensor.content, tensor.colours]
            if tensor.normalization is not None:
                mean, std = (_numbers(v) for v in attrs.astuple(tensor.normalization))
                parts.append(f"(x - {mean}) / {std}")
            if tensor.labels:
                parts.append(f"{len(tensor.labels)} labels, from {tensor.labels[0]}")
            parts += [f"file {file.name} ({file.kind})" for file in tensor.files]
            parts.append(tensor.description)
            told = ", ".join(part for part in parts if part)
            yield f"  {kind} {number} {tensor.name}: {told or 'nothing more'}"


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in values)


def _show_tensors(
    file: ModelFile, number: int, model: Path, shapes: Shapes, meta: ModelMetadata | None
) -> None:
    main = file.subgraphs[number]
    table = console.table(str(model), "", "tensor", "name", "type", "quantization")
    for kind, indices in (("input", main.inputs), ("output", main.outputs)):
        for index in indices:
            info, seen = main.tensors[index], _tensor_json(main, index)
            scale = ""
            if len(seen["scale"]) == 1:
                scale = f"scale {seen['scale'][0]:.6g}, zero point {seen['zero_point'][0]}"
            elif seen["scale"]:
                scale = f"{len(seen['scale'])} scales"
            table.add_row(kind, str(index), info.name, brief(info, shapes), scale)
    console.show(table)
    for signature in file.signatures:
        console.say(
            f"signature {signature.key}: {', '.join(signature.inputs)} -> "
            f"{', '.join(signature.outputs)}"
        )
    if file.description:
        console.say(f"description: {file.description}")
    for line in _metadata_lines(meta):
        console.say(line)
    if len(file.subgraphs) > 1:
        shown = f"number {number}" if number else "the first"
        console.say(f"{len(file.subgraphs)} subgraphs; {shown} is shown")
