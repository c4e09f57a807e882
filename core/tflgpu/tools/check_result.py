"""The findings of a check, as text, as plain values, and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Any

import attrs

from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_table import to_html as report_html
from tflgpu.tools.check_layer import DivergingLayer
from tflgpu.tools.check_outputs import BINS, Gap, OutputKind

COLUMNS = ("output", "as", "max abs", "share", "rms", "NaN, inf", "LiteRT's spread", "allowed", "")
_BARS = " ▁▂▃▄▅▆▇█"
_STYLE = (
    "body{font:15px sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}"
    "td,th{padding:.3em .8em;border-bottom:1px solid #ddd;text-align:left}"
    ".bad{color:#b00020}.good{color:#1b6e2c}.wide{width:20em}.bar{background:#4a78b5;height:.8em}"
)


@attrs.frozen
class OutputCheck:
    """One output of the model, over all samples.

    Attributes:
        name, dtype, shape: As the file has them.
        kind: What it is judged as.
        gap: The device against the reference.
        spread: LiteRT's reference kernels against XNNPACK; None where one of them does not run.
        limit: The share of its largest value that an element, of a mask the root of the mean
            square, may differ by.
        why: What is wrong; "" where it agrees.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: OutputKind
    gap: Gap
    spread: Gap | None
    limit: float
    why: str


@attrs.frozen(eq=False)
class CheckResult:
    """A device held against LiteRT; printed it is a few lines.

    Attributes:
        outputs: In the model's order.
        samples: How many there were.
        reference: What the device was compared with.
        report: Where the operators ran.
        layer: The operator from which on outputs differ; None where they agree, or where it was not
            found.
        notes: What else there is to know: which reference does not run the model, and what makes a
            result suspicious.
    """

    outputs: tuple[OutputCheck, ...]
    samples: int
    reference: str
    report: DelegationReport
    layer: DivergingLayer | None = None
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether all outputs are within their limits."""
        return not any(output.why for output in self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON; what is not finite is text."""
        return {
            "agrees": self.agrees,
            "verdict": verdict(self),
            "samples": self.samples,
            "reference": self.reference,
            "bins": list(bins()),
            "outputs": [_output(output) for output in self.outputs],
            "first_diverging": None if self.layer is None else _plain(attrs.asdict(self.layer)),
            "notes": list(self.notes),
            "report": self.report.to_dict(),
        }

    def to_html(self) -> str:
        """A page of HTML without scripts."""
        # All text is escaped: names come from files and drivers.
        mark = "good" if self.agrees else "bad"
        head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells(output))}</tr>"
            for output in self.outputs
        )
        below = "".join(f"<p>{escape(t)}</p>" for t in (layer_text(self), *self.notes) if t)
        pictures = "".join(_bars(output) for output in self.outputs)
        return (
            f"<!doctype html><meta charset=utf-8><title>tflgpu check</title><style>{_STYLE}</style>"
            f"<h1 class={mark}>{escape(verdict(self))}</h1>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{below}"
            "<h2>Elements by their difference, as a share of the output's largest value</h2>"
            f"{pictures}<h2>Where it ran</h2>{report_html(self.report)}\n"
        )

    def __str__(self) -> str:
        lines = [verdict(self)]
        lines += [f"  {output.name}: {output.why or 'ok'}" for output in self.outputs]
        lines += [line for line in (layer_text(self), *self.notes) if line]
        return "\n".join(lines)


def verdict(result: CheckResult) -> str:
    """The result in a sentence."""
    ran = result.report
    where = f"{ran.backend} ({ran.device}, {ran.precision})" if ran.backend else "the CPU"
    said = "agrees with" if result.agrees else "DIFFERS from"
    samples = "1 sample" if result.samples == 1 else f"{result.samples} samples"
    return f"{where} {said} {result.reference} on {samples}"


def cells(output: OutputCheck) -> tuple[str, ...]:
    """A row of the table, of `COLUMNS`."""
    gap, spread = output.gap, output.spread
    return (
        output.name,
        output.kind.value,
        f"{gap.max_abs:.2g}",
        f"{gap.share:.2g}",
        f"{gap.rms:.2g}",
        f"{gap.lost} of {gap.lost + gap.not_finite}" if gap.lost or gap.not_finite else "0",
        "" if spread is None else f"{spread.share:.2g}",
        "overlap 0.9" if output.kind is OutputKind.BOXES else f"{output.limit:.2g}",
        output.why or "ok",
    )


def layer_text(result: CheckResult) -> str:
    """The operator from which on outputs differ, in a sentence; "" where there is none."""
    layer = result.layer
    if layer is None:
        return ""
    made = ", ".join(layer.tensors)
    shares = "".join(
        f"; {share:.2g} with {what}"
        for what, share in (("it alone there", layer.alone), ("all but it there", layer.without))
        if share is not None
    )
    return f"first differs at operator {layer.index}, {layer.op} ({made}): {layer.why}{shares}"


def histogram(gap: Gap) -> str:
    """Elements by the size of their difference, as one character a bin."""
    most = max(gap.histogram) or 1
    return "".join(_BARS[-(-n * (len(_BARS) - 1) // most)] for n in gap.histogram)


def bins() -> tuple[str, ...]:
    """The bins' names."""
    between = (f"{a:g} to {b:g}" for a, b in pairwise(BINS))
    return (f"< {BINS[0]:g}", *between, f">= {BINS[-1]:g}")


def _output(output: OutputCheck) -> dict[str, Any]:
    return {**_plain(attrs.asdict(output)), "kind": output.kind.value, "ok": not output.why}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and abs(value) == float("inf"):
        return str(value)
    return value


def _bars(output: OutputCheck) -> str:
    counts: Sequence[int] = output.gap.histogram
    whole = sum(counts) or 1
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{n}</td>"
        f'<td class=wide><div class=bar style="width:{100 * n / whole:.1f}%"></div></td></tr>'
        for name, n in zip(bins(), counts, strict=True)
    )
    return f"<h3>{escape(output.name)}</h3><table>{rows}</table>"
