"""`tflgpu profile`, and the texts of a profile."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import rich
import tflgpu
from tflgpu.compiler.machines import Limits
from tflgpu.compiler.report_values import OperatorReport, Place
from tflgpu.runtime.profile import DispatchProfile, PartProfile, RunProfile
from tflgpu.tools.profile_html import graph_svg, to_html
from tflgpu.tools.profile_json import to_dict, to_json, to_node_data, to_trace
from tflgpu.tools.profile_rows import kind_of, lines, table, tables
from tflgpu_cpu_ref.recording import CpuRefRecording

from tests.cli.browser import Browser, chromium
from tests.cli.cli_helpers import Tflgpu

pytestmark = pytest.mark.usefixtures("known_limits")
KERNELS = ("--backend", "cpu_ref", "--device", "1")


#: Of 10 ms: 4 and 2 on the device with 1 between them, 1 around these, 1.5 on the CPU, 0.5 of the
#: host.
CONV = DispatchProfile(
    "#0 CONV_2D", "conv", (0, 1), ("CONV_2D", "RELU"), 4e-3, 0.0, nbytes=2_000_000, flops=2e7
)
PACK = DispatchProfile("#2 PACK", "copy", (2,), ("PACK",), 2e-3, 5e-3, nbytes=1_000_000)
ON_DEVICE = PartProfile(
    "3 nodes on the device", 0, False, (0, 1, 2), ("CONV_2D", "RELU", "PACK"),
    "a (b)", 0.5e-3, 8e-3, (CONV, PACK),
)  # fmt: skip
ON_CPU = PartProfile("1 nodes on the CPU", 0, True, (3,), ("SVDF",), "LiteRT", 8.5e-3, 1.5e-3)
OPERATORS = (
    OperatorReport(0, "CONV_2D", ("x",), ("a",), Place.DEVICE),
    OperatorReport(1, "RELU", ("a",), ("b",), Place.DEVICE),
    OperatorReport(2, "PACK", ("b",), ("c",), Place.DEVICE),
    OperatorReport(3, "SVDF", ("c", "a"), ("<y>",), Place.CPU, reason="x is <i8>"),
    OperatorReport(4, "CAST", ("a",), ("z",), Place.FOLDED),
)
REPORT = tflgpu.DelegationReport(
    5, 4, backend="a", device="b<>", precision="f32", operators=OPERATORS
)
MADE = RunProfile(
    REPORT, 1e-2, 9e-3, 5, (ON_DEVICE, ON_CPU), {0: 2e7, 1: 1e2}, Limits(1e9, 1e10)
)  # fmt: skip


def rows(made: RunProfile, title: str, most: int | None = None) -> list[tuple[str, ...]]:
    (found,) = [t for t in tables(made, most) if title in t.title]
    return list(found.rows)


def test_where_the_time_goes() -> None:
    assert rows(MADE, "Where the time goes") == [
        ("dispatches", "6.0 ms", "60.0%"),
        ("between dispatches", "1.0 ms", "10.0%"),
        ("submission, copies, waiting", "1.0 ms", "10.0%"),
        ("parts on the CPU", "1.5 ms", "15.0%"),
        ("host, outside of parts", "500 us", "5.0%"),
        ("together", "10 ms", "100.0%"),
    ]


def test_kinds_and_dispatches_with_rates_and_limits() -> None:
    # 2 MB in 4 ms, of 1 GB/s; 20 MFLOP in 4 ms, of 10 GFLOP/s: the larger share counts.
    assert rows(MADE, "By operator kind") == [
        ("CONV_2D", "1", "4.0 ms", "40.0%", "0.5", "5", "50%"),
        ("PACK", "1", "2.0 ms", "20.0%", "0.5", "", "50%"),
    ]
    assert rows(MADE, "Dispatches") == [
        ("#0 CONV_2D, #1 RELU", "conv", "4.0 ms", "40.0%", "0.5", "5", "50%"),
        ("#2 PACK", "copy", "2.0 ms", "20.0%", "0.5", "", "50%"),
    ]
    assert rows(MADE, "The 1 of 2 dispatches", most=1) == rows(MADE, "Dispatches")[:1]
    assert rows(MADE, "Parts without times of dispatches") == [
        ("#3", "SVDF", "LiteRT", "1.5 ms", "15.0%")
    ]


def test_what_is_not_known_is_empty_and_says_why() -> None:
    silent = attrs.evolve(ON_DEVICE, dispatches=(), reason="it has no clock")
    made = attrs.evolve(MADE, parts=(silent,), limits=None, no_limits="no clock")
    assert "no times of dispatches: it has no clock" in list(lines(made))
    assert [t.title for t in tables(made)] == [
        "Where the time goes",
        "Parts without times of dispatches",
    ]
    assert to_dict(made)["no_times"] == "it has no clock"
    assert to_node_data(made)["main"]["results"] == {}
    unlimited = attrs.evolve(MADE, limits=None, no_limits="no clock")
    assert rows(unlimited, "Dispatches")[0][-1] == ""
    assert "shares of the device's limits are not told: no clock" in list(lines(unlimited))
    at_once = attrs.evolve(CONV, seconds=0.0)
    instant = attrs.evolve(MADE, parts=(attrs.evolve(ON_DEVICE, dispatches=(at_once,)),))
    assert rows(instant, "Dispatches")[0][3:] == ("0.0%", "", "", "")
    assert to_dict(instant)["parts"][0]["dispatches"][0]["bytes_per_second"] is None


def test_a_kind_is_the_operator_with_the_most_operations() -> None:
    behind = attrs.evolve(CONV, operators=(1, 0), ops=("RELU", "CONV_2D"))
    assert kind_of(MADE, behind) == "CONV_2D"
    assert kind_of(MADE, attrs.evolve(CONV, operators=(), ops=())) == "(conv)"


def test_brackets_in_names_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    odd = attrs.evolve(MADE, parts=(attrs.evolve(ON_CPU, runs_on="[red]x[/red]"),))
    rich.print(table(odd))
    assert "[red]x[/red]" in capsys.readouterr().out


def test_json_has_all_and_is_of_the_standard() -> None:
    made = json.loads(to_json(MADE))
    assert made["version"] == 1
    assert sum(made["steps"].values()) == pytest.approx(made["seconds"])
    first, second = made["parts"][0]["dispatches"]
    assert (first["kind"], first["of_limit"], first["start"]) == ("CONV_2D", 0.5, 0.0)
    assert second["flops"] is None
    assert made["limits"] == {"bandwidth": 1e9, "arithmetic": 1e10}
    assert [o["operator"] for o in made["operators"]] == [0, 1, 2, 3]
    assert made["report"]["total_operators"] == 5


def test_the_events_of_a_trace_lie_in_one_another() -> None:
    events = to_trace(MADE)["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X"}
    spans = {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"}
    assert spans["invoke"] == (0.0, 1e4)
    assert spans["3 nodes on the device"] == (500.0, 8500.0)
    # 7 ms of dispatches in the middle of 8.
    assert spans["#0 CONV_2D, #1 RELU"] == (1000.0, 5000.0)
    assert spans["#2 PACK"] == (6000.0, 8000.0)
    on_device = [e for e in events if e["ph"] == "X" and e["tid"] == 2]
    assert on_device[0]["args"]["flops_per_second"] == pytest.approx(5e9)
    assert "flops_per_second" not in on_device[1]["args"]
    silent = attrs.evolve(
        ON_DEVICE, dispatches=tuple(attrs.evolve(d, start=None) for d in (CONV, PACK))
    )
    events = to_trace(attrs.evolve(MADE, parts=(silent,)))["traceEvents"]
    starts = [e["ts"] for e in events if e["ph"] == "X" and e["tid"] == 2]
    assert starts == [1500.0, 5500.0]


def test_node_data_names_operators_as_the_file_does() -> None:
    made = to_node_data(MADE, "body")
    values = {k: v["value"] for k, v in made["body"]["results"].items()}
    assert values == pytest.approx({"0": 4.0, "1": 2e-5, "2": 2.0, "3": 1.5}, rel=1e-4)
    assert list(to_node_data(MADE, "")) == ["main"]


class Page(HTMLParser):
    """Which tags were opened and not closed, and the texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.scripts += tag == "script"
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_is_whole_and_escaped() -> None:
    page = Page(to_html(MADE, "<model>"))
    assert (page.open, page.scripts) == ([], 0)
    assert "<model>" in page.texts
    assert any("b<>" in text for text in page.texts)
    assert any("x is <i8>" in text for text in page.texts)
    cells = set(page.texts)
    assert {"#0 CONV_2D, #1 RELU", "4.0 ms", "50%"} <= cells


def test_a_browser_shows_the_page(tmp_path: Path) -> None:
    chromium()
    path = tmp_path / "profile.html"
    path.write_text(to_html(MADE, "<model>"), encoding="utf-8")
    browser = Browser(tmp_path / "chromium")
    try:
        browser.open(path.as_uri())
        browser.wait_for("document.title === '<model>' && document.readyState === 'complete'")
        boxes = "[...document.querySelectorAll('svg rect')].map(r => r.getBoundingClientRect())"
        heights = browser.evaluate(f"{boxes}.map(b => b.height)")
        assert heights == [24] * 5
        tops = browser.evaluate(f"{boxes}.map(b => b.top)")
        assert sorted(tops[:4]) == tops[:4]
        colour = "getComputedStyle(document.querySelector('svg rect')).fill"
        assert browser.evaluate(colour) not in ("rgb(0, 0, 0)", "none", "rgb(255, 255, 255)")
        assert browser.evaluate("document.querySelectorAll('table').length") == 5
    finally:
        browser.close()


def test_the_graph_is_coloured_by_time_and_place() -> None:
    drawn = graph_svg(OPERATORS, MADE.by_operator)
    boxes = re.findall(r'<rect x="(\d+)" y="(\d+)".*?fill="(.*?)" stroke="(.*?)"', drawn)
    assert len(boxes) == 5
    below = [int(box[1]) for box in boxes]
    assert below[0] < below[1] < below[2] < below[3]
    assert below[4] == below[1]  # beside what reads the same
    assert boxes[4][0] != boxes[1][0]
    fills = [box[2] for box in boxes]
    assert fills[0] == "hsl(14,90%,55%)"  # the longest
    assert fills[4] == "#fff"
    assert len({box[3] for box in boxes}) == 3  # device, CPU, folded
    assert drawn.count("<path") == 5
    assert "#4 CAST: no time of its own; folded" in drawn
    constant = OperatorReport(5, "DEQUANTIZE", ("halves",), ("w",), Place.FOLDED)
    assert "DEQUANTIZE" not in graph_svg((*OPERATORS, constant), {})
    assert graph_svg((), {}).startswith("<svg")


# The command


def test_the_command_prints_tables(tflgpu: Tflgpu, digits: Path) -> None:
    ran = tflgpu("profile", digits, *KERNELS, "--runs", 2, "--top", 2)
    assert ran.exit_code == 0
    assert "7 of 7 operators run on cpu_ref" in ran.stdout
    assert "medians of 2 runs each" in ran.stdout
    for title in ("Where the time goes", "By operator kind", "The 2 of 6 dispatches"):
        assert title in ran.stdout
    every = tflgpu("profile", digits, *KERNELS, "--runs", 1, "--all").stdout
    assert re.findall(r"^#(\d)", every, re.MULTILINE) == ["0", "1", "2", "3", "5", "6"]


def test_the_command_writes_files(tflgpu: Tflgpu, digits: Path, tmp_path: Path) -> None:
    page, trace, data = tmp_path / "p.html", tmp_path / "t.json", tmp_path / "n.json"
    ran = tflgpu(
        "profile", digits, *KERNELS, "--runs", 1, "--json",
        "--html", page, "--trace", trace, "--node-data", data,
    )  # fmt: skip
    assert ran.exit_code == 0
    made = json.loads(ran.stdout)
    assert sum(made["steps"].values()) == pytest.approx(made["seconds"], rel=0.05)
    assert Page(page.read_text()).open == []
    assert len(json.loads(trace.read_text())["traceEvents"]) == 3 + 1 + 1 + 6
    (graph,) = json.loads(data.read_text()).values()
    assert set(graph["results"]) == {str(o["operator"]) for o in made["operators"]}
    for path in (page, trace, data):
        assert f"wrote {path}" in " ".join(ran.stderr.split())
    bad = tflgpu("profile", digits, *KERNELS, "--runs", 1, "--html", tmp_path / "no" / "p.html")
    assert bad.exit_code == 2
    assert "cannot write" in bad.stderr


def test_a_file_is_an_input(tflgpu: Tflgpu, scale: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.ones((4, 3), np.float32))
    ran = tflgpu("profile", scale, *KERNELS, "--runs", 1, "-i", path, "--json")
    (part,) = json.loads(ran.stdout)["parts"]
    # 4 rows of x and y, each padded to 4 numbers or not, and the factors.
    assert part["dispatches"][0]["bytes"] >= 2 * 4 * 3 * 4


def test_a_device_without_timers_says_so(
    tflgpu: Tflgpu, digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuRefRecording, "_profile", lambda self: (self._run(), ())[1])
    ran = tflgpu("profile", digits, *KERNELS, "--runs", 1)
    assert "no times of dispatches: the device has no timers" in ran.stdout
    assert "By operator kind" not in ran.stdout


def test_profile_and_profiles_name_each_other(tflgpu: Tflgpu) -> None:
    assert "profiles" in tflgpu("profile", "--help").stdout
    assert "device profiles" in tflgpu("--help").stdout
