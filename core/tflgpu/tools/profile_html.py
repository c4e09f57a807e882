"""A profile as a page: its tables, and the model's graph coloured by time and place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from tflgpu.compiler.report_table import to_html as report_html
from tflgpu.compiler.report_values import OperatorReport, Place
from tflgpu.compiler.times import told
from tflgpu.runtime.profile import RunProfile
from tflgpu.tools.profile_rows import TextTable, lines, tables

_WIDE, _HIGH, _GAP, _ROW = 216, 24, 12, 44  # pixels
#: Borders, by place.
_PLACES = {
    Place.DEVICE: ("device", "#3a7d34", ""),
    Place.CPU: ("CPU", "#1f5fbf", ""),
    Place.FOLDED: ("folded into others", "#888", "4 3"),
}
_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2em;color:#222}table{border-collapse:collapse}"
    "td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #ddd}"
    ".name,.words td,.words th{text-align:left}h2{font-size:1.1em;margin:1.5em 0 .4em}"
    ".graph{overflow:auto}"
    "svg text{font:11px system-ui,sans-serif}"
)


def to_html(profile: RunProfile, title: str = "profile") -> str:
    """A page that stands alone, without scripts. All text is escaped: names of tensors, ops and
    devices come from files and drivers."""
    head = "".join(f"<p>{escape(line)}</p>" for line in lines(profile))
    parts = "".join(_table(each) for each in tables(profile))
    return (
        f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>{head}{parts}"
        f"<h2>Graph</h2>{_legend()}"
        f'<div class="graph">{graph_svg(profile.report.operators, profile.by_operator)}</div>'
        f'<h2>Delegation</h2><div class="words">{report_html(profile.report)}</div></html>'
    )


def graph_svg(operators: Sequence[OperatorReport], seconds: Mapping[int, float]) -> str:
    """The operators of a model, each below those whose results it reads, in the colour of its time;
    one whose time is not known is white. What was computed beforehand, of constants alone, is left
    out."""
    readers = {reader for _, reader in _edges(operators)}
    operators = [o for o in operators if o.place is not Place.FOLDED or o.node in readers]
    at = _placed(operators)
    most = max(seconds.values(), default=0.0)
    edges = "".join(
        f'<path d="M{x0 + _WIDE / 2:g} {y0 + _HIGH:g} L{x1 + _WIDE / 2:g} {y1:g}"/>'
        for maker, reader in _edges(operators)
        for (x0, y0), (x1, y1) in [(at[maker], at[reader])]
    )
    nodes = "".join(_node(o, at[o.node], seconds.get(o.node), most) for o in operators)
    wide = max((x for x, _ in at.values()), default=0) + _WIDE + _GAP
    high = max((y for _, y in at.values()), default=0) + _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}">'
        f'<g stroke="#aaa" fill="none">{edges}</g>{nodes}</svg>'
    )


# Inside


def _table(table: TextTable) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        made = (
            f"<{tag}{' class=name' if at < table.names else ''}>{escape(cell)}</{tag}>"
            for at, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(row(cells, "td") for cells in table.rows)
    return f"<h2>{escape(table.title)}</h2><table>{row(table.columns, 'th')}{body}</table>"


def _legend() -> str:
    borders = ", ".join(
        f'<span style="border:2px {"dashed" if dashes else "solid"} {colour};padding:0 6px">'
        f"{name}</span>"
        for name, colour, dashes in _PLACES.values()
    )
    return f"<p>{borders}; red is the operator that takes longest, white one without a time</p>"


def _edges(operators: Sequence[OperatorReport]) -> Iterator[tuple[int, int]]:
    """Who makes a tensor, and who reads it, each pair once; tensors without a name are left out."""
    makers: dict[str, int] = {}
    for operator in operators:
        for maker in dict.fromkeys(makers[n] for n in operator.inputs if n in makers):
            yield maker, operator.node
        makers.update({name: operator.node for name in operator.outputs if name})


def _placed(operators: Sequence[OperatorReport]) -> dict[int, tuple[int, int]]:
    """The place of each operator: a row below the lowest that it reads, in the order of the
    file."""
    rows: dict[int, int] = {}
    filled: dict[int, int] = {}
    reads: dict[int, list[int]] = {}
    for maker, reader in _edges(operators):
        reads.setdefault(reader, []).append(maker)
    found = {}
    for operator in operators:
        row = 1 + max((rows[maker] for maker in reads.get(operator.node, ())), default=-1)
        rows[operator.node], column = row, filled.get(row, 0)
        filled[row] = column + 1
        found[operator.node] = _GAP + column * (_WIDE + _GAP), _GAP + row * _ROW
    return found


def _node(
    operator: OperatorReport, place: tuple[int, int], seconds: float | None, most: float
) -> str:
    x, y = place
    name, border, dashes = _PLACES[operator.place]
    heat = seconds / most if seconds and most else 0.0
    colour = f"hsl(14,90%,{100 - 45 * heat:.0f}%)" if seconds else "#fff"
    time = "" if seconds is None else told(seconds)
    tip = f"#{operator.node} {operator.op}: {time or 'no time of its own'}; {name}"
    if operator.reason:
        tip += f"; {operator.reason}"
    label = f"#{operator.node} {operator.op[:18]}"
    return (
        f'<g><title>{escape(tip)}</title><rect x="{x}" y="{y}" width="{_WIDE}" height="{_HIGH}" '
        f'rx="4" fill="{colour}" stroke="{border}" stroke-dasharray="{dashes}"/>'
        f'<text x="{x + 6}" y="{y + 16}">{escape(label)}</text>'
        f'<text x="{x + _WIDE - 6}" y="{y + 16}" text-anchor="end">{escape(time)}</text></g>'
    )
