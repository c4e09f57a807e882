"""The operators of a file as a table: what each reads and makes, where it runs, and why not on the
device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import attrs

from tflgpu.cli import console
from tflgpu.compiler.report_values import numbers
from tflgpu.errors import OptionError
from tflgpu.errors.blame import did_you_mean, shown
from tflgpu.tflite.model_file import TensorInfo

DEVICE, FOLDED, CPU, HOST, NOWHERE = "device", "folded", "CPU", "host", "nowhere"
PLACES = (DEVICE, FOLDED, CPU, HOST, NOWHERE)

#: Shapes by a tensor's index, as they were inferred; None for one that only a run tells.
Shapes = Mapping[int, Sequence[int] | None]


@attrs.frozen
class Row:
    """An operator of the file.

    Attributes:
        where: "device"; "folded": worked out before the model runs, or merged away; "CPU";
            "host": the interpreter runs it, between compiled pieces; or "nowhere", which keeps the
            model from running.
        part: Which part of the device's, from 0.
        reason: Why it is not on the device.
        code: What kind of reason that is, as `ReasonCode`; "" where it is there.
        seconds, gain: The fields of `OperatorReport`; None without an estimate.
        numerics: With integer numerics, "integers" or "floats" for an operator on quantized
            tensors; "" for any other.
        in_floats: Why it is floats.
    """

    index: int
    op: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    where: str
    part: int | None = None
    reason: str = ""
    numerics: str = ""
    in_floats: str = ""
    code: str = ""
    seconds: float | None = None
    gain: float | None = None


def place_of(text: str) -> str:
    """The place that --only names.

    Raises:
        OptionError: it is none.
    """
    found = {place.lower(): place for place in PLACES}.get(text.strip().lower())
    if found is None:
        meant = did_you_mean(text.strip().lower(), [place.lower() for place in PLACES])
        there = ", ".join(PLACES).lower()
        raise OptionError(f"--only is one of {there}, not {shown(text)}{meant}")
    return found


def brief(info: TensorInfo, shapes: Shapes = MappingProxyType({})) -> str:
    """A tensor's type and shape, with "?" for what only a run tells."""
    mark = "=" if info.is_constant else "~" if info.is_variable else ""
    sizes: Sequence[int] | None = info.shape
    if len(info.shape_signature) == len(info.shape):
        sizes = info.shape_signature
    if not info.shape and not info.has_rank and not info.is_constant:
        sizes = None  # such a file says nothing
    sizes = shapes.get(info.index, sizes) if sizes is None else sizes
    if sizes is None or shapes.get(info.index, ()) is None:
        return f"{mark}{info.dtype.value}[?]"
    return f"{mark}{info.dtype.value}[{','.join('?' if s < 0 else str(s) for s in sizes)}]"


def show_rows(rows: Sequence[Row]) -> None:
    """A table that is whole in 80 columns, and the reasons below it, each with its operators."""
    several = len({r.part for r in rows if r.part is not None}) > 1
    reasons = list(dict.fromkeys(_reason(r) for r in rows if _reason(r)))
    table = console.table(
        "Operators (= constant, ~ variable, ? known when it runs, v version)",
        "#",
        "op",
        "v",
        "inputs",
        "outputs",
        "where",
        right=("#", "v"),
    )
    for r in rows:
        where = f"{r.where}, part {r.part}" if several and r.part is not None else r.where
        where = f"{where}, {r.numerics}" if r.numerics else where
        table.add_row(
            str(r.index),
            r.op,
            str(r.version),
            " ".join(r.inputs),
            " ".join(r.outputs),
            f"{where} ({reasons.index(_reason(r)) + 1})" if _reason(r) else where,
        )
    console.show(table)
    for number, reason in enumerate(reasons, 1):
        found = [r for r in rows if _reason(r) == reason]
        ops = ", ".join(f"{n} {op}" for op, n in Counter(r.op for r in found).most_common())
        console.say(f"({number}) {ops} ({numbers([r.index for r in found])}): {reason}")
    counts = Counter(r.op for r in rows)
    console.say("ops: " + ", ".join(f"{op} {n}" for op, n in counts.most_common()))


def _reason(row: Row) -> str:
    return row.reason or row.in_floats
