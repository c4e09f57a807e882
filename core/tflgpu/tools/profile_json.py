"""A profile for other programs: JSON, a trace for Perfetto, node data for Model Explorer.
docs/profile.md describes the fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import attrs

from tflgpu.runtime.profile import DispatchProfile, PartProfile, RunProfile
from tflgpu.tools.profile_rows import kind_of, operators_of

#: Changes where a field goes or means something else; new fields leave it as it is.
VERSION = 1
_HOST, _DEVICE = 1, 2  # threads of a trace
#: Colours of Model Explorer's nodes, from the least time to the greatest.
_GRADIENT = ((0, "#fff7ec"), (0.5, "#fdbb84"), (1, "#d7301f"))


def to_dict(profile: RunProfile) -> dict[str, Any]:
    """Strings, numbers, booleans, None, lists and dictionaries of these. Times are in seconds."""
    limits = profile.limits
    return {
        "version": VERSION,
        "seconds": profile.seconds,
        "plain_seconds": profile.plain,
        "runs": profile.runs,
        "steps": profile.steps,
        "limits": None if limits is None else attrs.asdict(limits),
        "no_limits": profile.no_limits,
        "no_times": profile.no_times,
        "parts": [_part(profile, part) for part in profile.parts],
        "operators": [
            {"operator": at, "seconds": seconds}
            for at, seconds in sorted(profile.by_operator.items())
        ],
        "report": profile.report.to_dict(),
    }


def to_json(profile: RunProfile, indent: int | None = None) -> str:
    """`to_dict` as JSON of the standard."""
    return json.dumps(to_dict(profile), indent=indent, allow_nan=False)


def to_trace(profile: RunProfile) -> dict[str, Any]:
    """The run in Chrome's trace event format, which Perfetto (ui.perfetto.dev) and chrome://tracing
    open. Times are in microseconds since the run began.

    The clocks of host and device are not compared: the dispatches of a part lie in the middle of
    its call. Without starts of dispatches they lie one behind another.
    """
    events = [*_names(profile), _event("invoke", "run", _HOST, 0.0, profile.seconds, {})]
    for part in profile.parts:
        events += _part_events(profile, part)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def to_node_data(profile: RunProfile, graph: str = "main") -> dict[str, Any]:
    """Milliseconds by operator, as Model Explorer takes node data from a file. Operators whose time
    is not known are left out.

    Args:
        profile: What to write.
        graph: What Model Explorer calls the graph: the main subgraph's name, or "main" where it has
            none.
    """
    times = sorted(profile.by_operator.items())
    results = {str(at): {"value": round(seconds * 1e3, 6)} for at, seconds in times}
    gradient = [{"stop": stop, "bgColor": colour} for stop, colour in _GRADIENT]
    return {graph or "main": {"results": results, "gradient": gradient}}


# Inside


def _part(profile: RunProfile, part: PartProfile) -> dict[str, Any]:
    return {
        "subgraph": part.subgraph,
        "on_cpu": part.on_cpu,
        "runs_on": part.runs_on,
        "operators": list(part.operators),
        "ops": list(part.ops),
        "start": part.start,
        "seconds": part.seconds,
        "reason": part.reason,
        "dispatches": [_dispatch(profile, each) for each in part.dispatches],
    }


def _dispatch(profile: RunProfile, dispatch: DispatchProfile) -> dict[str, Any]:
    limits, seconds = profile.limits, dispatch.seconds
    return {
        "label": dispatch.label,
        "kernel": dispatch.kernel,
        "kind": kind_of(profile, dispatch),
        "operators": list(dispatch.operators),
        "ops": list(dispatch.ops),
        "start": dispatch.start,
        "seconds": seconds,
        "of_run": seconds / profile.seconds,
        "bytes": dispatch.nbytes,
        "flops": dispatch.flops or None,
        "bytes_per_second": dispatch.nbytes / seconds if seconds else None,
        "flops_per_second": dispatch.flops / seconds if seconds and dispatch.flops else None,
        "of_limit": None if limits is None else dispatch.of_limit(limits),
    }


def _names(profile: RunProfile) -> Iterator[dict[str, Any]]:
    report = profile.report
    device = f"{report.backend} ({report.device})" if report.backend else "no device"
    for what, thread, name in (
        ("process_name", _HOST, "tflgpu"),
        ("thread_name", _HOST, "host"),
        ("thread_name", _DEVICE, device),
    ):
        yield {"name": what, "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}


def _part_events(profile: RunProfile, part: PartProfile) -> Iterator[dict[str, Any]]:
    listed = {"operators": operators_of(part), "runs on": part.runs_on}
    yield _event(part.label, "part", _HOST, part.start, part.seconds, listed)
    at = part.start + max(part.seconds - part.span, 0.0) / 2
    end = 0.0
    for dispatch in part.dispatches:
        start = end if dispatch.start is None else dispatch.start
        end = start + dispatch.seconds
        facts = _dispatch(profile, dispatch)
        more = {
            name: facts[name]
            for name in ("kernel", "bytes", "bytes_per_second", "flops_per_second", "of_limit")
            if facts[name] is not None
        }
        more["operators"] = operators_of(dispatch)
        name = operators_of(dispatch) or dispatch.label
        yield _event(name, facts["kind"], _DEVICE, at + start, dispatch.seconds, more)


def _event(
    name: str, category: str, thread: int, start: float, seconds: float, more: dict[str, Any]
) -> dict[str, Any]:
    """A complete event."""
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": start * 1e6,
        "dur": seconds * 1e6,
        "pid": 1,
        "tid": thread,
        "args": more,
    }
