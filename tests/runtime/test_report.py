"""What a report says: in words, as JSON, as tables; and that it is true of what was compiled."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from io import StringIO

import attrs
import numpy as np
import pytest
from rich.console import Console
from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_of import report_of
from tflgpu.compiler.report_rows import notes
from tflgpu.compiler.report_values import OperatorReport, PartitionReport, Place, Refusal
from tflgpu.compiler.target import Target
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.reason import ReasonCode
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.registry import default_passes
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model

from tests.small_models import small_model, tensor_of


def refusals(*reasons: str) -> tuple[Refusal, ...]:
    return tuple(Refusal(i, "ADD", reason) for i, reason in enumerate(reasons))


def test_one_reason_for_everything_is_said_once() -> None:
    report = DelegationReport(3, 0, refusals("no driver", "no driver", "no driver"))
    assert str(report) == "3 of 3 operators run on the CPU by NumPy references: no driver"


def test_reasons_that_differ_are_listed() -> None:
    report = DelegationReport(2, 0, refusals("too large", "no kernel"))
    assert str(report).splitlines() == [
        "2 of 2 operators run on the CPU by NumPy references",
        "  #0 ADD: too large",
        "  #1 ADD: no kernel",
    ]
    assert report.common_reason is None


def test_a_reason_for_some_is_not_one_for_all() -> None:
    report = DelegationReport(
        3, 1, refusals("no kernel", "no kernel"), backend="vulkan", device="a GPU", precision="f32"
    )
    assert report.common_reason is None
    assert str(report).splitlines()[0] == "1 of 3 operators run on vulkan (a GPU, f32)"
    assert len(str(report).splitlines()) == 3


GPU = {"backend": "vulkan", "device": "a GPU", "precision": "f32"}


@pytest.mark.parametrize("parts", [1, 3])
def test_more_parts_than_tflite_would_take_are_said(parts: int) -> None:
    report = DelegationReport(6, 6, partitions=parts, **GPU)  # type: ignore[arg-type]
    said = [note for note in notes(report) if "max_delegated_partitions=1" in note]
    assert [note.split(";")[0] for note in said] == ["3 parts are on the device"] * (parts > 1)


def test_the_sentence_of_the_log() -> None:
    left = tuple(
        Refusal(i, op, why, "LiteRT")
        for i, (op, why) in enumerate(
            [("ADD", "too\n large"), ("MUL", "too\n large"), ("ABS", "no")]
        )
    )
    report = DelegationReport(14, 11, left, **GPU)  # type: ignore[arg-type]
    assert report.sentence == (
        "11 of 14 operators run on vulkan (a GPU, f32); 3 on the CPU (LiteRT): ADD, MUL: too large "
        "(2 operators); ABS: no (1 operator); see the report"
    )


def test_the_sentence_is_short_whatever_there_is_to_say() -> None:
    report = DelegationReport(40, 0, refusals(*(f"reason {i} " * 90 for i in range(40))))
    assert "37 more reasons" in report.sentence
    assert len(report.sentence) < 1000


def test_nothing_left_is_the_summary() -> None:
    report = DelegationReport(3, 3, **GPU)  # type: ignore[arg-type]
    assert report.sentence == report.summary


NASTY = "</td><script>alert('[red]')</script> [bold]&amp; \u202e"


def nasty() -> DelegationReport:
    """Names and reasons of somebody who wants to be seen."""
    return DelegationReport(
        3, 2, (Refusal(1, NASTY, NASTY, NASTY, ReasonCode.PLUGIN_FAULT),), 1, 1, NASTY, NASTY,
        NASTY,
        operators=(
            OperatorReport(0, "ADD", ("x", ""), (NASTY,), Place.DEVICE, NASTY, NASTY, 0,
                           seconds=2e-5, gain=-1e-5),
            OperatorReport(1, NASTY, runs_on=NASTY, code=ReasonCode.PLUGIN_FAULT, reason=NASTY,
                           seconds=float("nan")),
            OperatorReport(2, "PAD", place=Place.FOLDED, seconds=0.0),
        ),
        parts=(PartitionReport(0, (0,), 1, float("inf"), 1e-5),),
        partitioning=NASTY, estimates=NASTY, seconds=1e-3, cpu_seconds=2e-3,
    )  # fmt: skip


def test_json_is_json_of_the_standard() -> None:
    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    text = nasty().to_json()
    found = json.loads(text, parse_constant=refuse)
    assert found == nasty().to_dict()
    assert "\n" not in text
    assert "\n  " in nasty().to_json(indent=2)
    assert [o["seconds"] for o in found["operators"]] == [2e-5, None, 0.0]
    assert found["partitions"][0]["seconds"] is None
    assert found["operators"][1]["code"] == "plugin_fault"
    assert found["operators"][0]["outputs"] == [NASTY]


class Cells(HTMLParser):
    """Tags and texts of a page, as a browser would read them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html_is_escaped() -> None:
    page = Cells(nasty()._repr_html_())
    assert page.tags == {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert NASTY in page.texts
    assert "-10 us" in page.texts
    assert any("1.0 ms a run; wholly on the CPU 2.0 ms" in text for text in page.texts)


def printed(report: DelegationReport, *, every: bool = False) -> str:
    console = Console(file=StringIO(), width=300, color_system="truecolor", force_terminal=True)
    console.print(report.table(every=every))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_table_takes_no_markup_from_names() -> None:
    row = OperatorReport(0, "[red]ADD[/red]", reason="no [bold]such kernel")
    text = printed(DelegationReport(1, 0, operators=(row,)))
    assert "[red]ADD[/red]" in text
    assert "no [bold]such kernel" in text
    assert "[red]" in printed(nasty())


def test_a_table_has_a_line_for_what_is_the_same() -> None:
    rows = tuple(
        OperatorReport(
            i, "ADD", place=Place.DEVICE, backend="toy", partition=0, seconds=1e-5, gain=2e-5
        )
        for i in range(6)
    )
    report = DelegationReport(6, 6, partitions=1, operators=rows, **GPU)  # type: ignore[arg-type]
    together = [line for line in printed(report).splitlines() if "ADD" in line]
    assert len(together) == 1
    assert "#0, #1, #2, #3 and 2 more" in together[0]
    assert "60 us" in together[0]
    assert "120 us" in together[0]
    assert sum("ADD" in line for line in printed(report, every=True).splitlines()) == 6


def halved() -> Graph:
    """f16 weights behind DEQUANTIZE, large enough that the reader does not fold them."""
    rng = np.random.default_rng(3)
    weights = rng.normal(0, 1, (160, 128)).astype(np.float16)
    model = read_model(
        small_model(
            {
                "x": (2, 128),
                "h": tensor_of((160, 128), DType.F16, weights),
                "w": (160, 128),
                "y": (2, 160),
                "z": (2, 160),
            },
            ("w = DEQUANTIZE(h)", {}, {"version": 3}),
            "y = FULLY_CONNECTED(x, w, -)",
            "z = ABS(y)",
        )
    )
    return build_graph(model, 0, builtin_ops())


def compiled_report(refused: str) -> DelegationReport:
    def objection(node: Node) -> Unsupported | None:
        no = Unsupported("not today", ReasonCode.DRIVER_FAULT)
        return no if node.op == refused else None

    target = attrs.evolve(
        Target.plain(DeviceCaps(), Precision.F32),
        passes=tuple(default_passes(())), objection=objection,
    )  # fmt: skip
    graph = halved()
    compiled = compile_graph(graph, target)
    assert "DEQUANTIZE" not in {n.op for part in compiled.parts for n in part.nodes}
    return report_of(graph, compiled)


@pytest.mark.parametrize(
    ("refused", "places", "delegated"),
    [
        ("none", "folded device device", 3),
        ("FULLY_CONNECTED", "folded cpu device", 2),
        ("ABS", "folded device cpu", 2),
    ],
)
def test_16_bit_weights_make_no_parts_and_no_refusals(
    refused: str, places: str, delegated: int
) -> None:
    report = compiled_report(refused)
    assert [o.place.value for o in report.operators] == places.split()
    assert (report.total_nodes, report.delegated_nodes, report.partitions) == (3, delegated, 1)
    assert [r.op for r in report.refusals] == ([] if refused == "none" else [refused])
    assert all(r.code is ReasonCode.DRIVER_FAULT for r in report.refusals)
    assert report.operators[0].seconds == 0


def test_rows_say_what_was_compiled() -> None:
    report = compiled_report("FULLY_CONNECTED")
    weights, product, last = report.operators
    assert (weights.inputs, weights.outputs) == (("h",), ("w",))
    assert (product.inputs, product.outputs) == (("x", "w", ""), ("y",))
    assert (product.code, product.reason, product.partition) == (
        ReasonCode.DRIVER_FAULT, "not today", None,
    )  # fmt: skip
    assert product.gain is None
    assert (last.partition, last.code, last.reason) == (0, None, "")
    (part,) = report.parts
    assert (part.number, part.operators, part.dispatches) == (0, (2,), 1)
    assert last.seconds is not None
    assert product.seconds is not None
    assert last.gain is not None
    assert part.seconds > last.seconds > 0
    assert part.gain < last.gain
    assert report.seconds == pytest.approx(part.seconds + product.seconds, rel=0.5)
