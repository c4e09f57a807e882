"""Which backend and device a delegate uses, and why.

Order of say: `DelegateOptions`, then ``TFLGPU_BACKEND`` and ``TFLGPU_DEVICE``, then what the
device database and the drivers say: devices on the deny list are left out, real GPUs come before
devices that only emulate one, and where several are left they are measured, once, and the
fastest is used. A device that does not open gives way to the next.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing

import attrs

from tflgpu.backend_kit.forks import try_in_child
from tflgpu.compat.entry import Judgement, judge
from tflgpu.contract.device import UUID, Device, DeviceInfo, NodeDevice, Probe
from tflgpu.contract.memory_use import CountsMemory
from tflgpu.contract.offers import offers
from tflgpu.devices import measured_times
from tflgpu.devices.candidates import Candidate, ExaminedDevice, Notes
from tflgpu.errors import DeviceError, TflgpuError
from tflgpu.errors.blame import Failed, attempt, shown
from tflgpu.options import CPU, DelegateOptions, device_from_text
from tflgpu.plugins.registry import Registry, missing_driver
from tflgpu.values import frozen

#: A device of lower rank must be this much faster: less is chance, and the choice would differ
#: from one machine to its twin.
_MARGIN = 1.1

#: What follows from there being no device; not true where the CPU is not allowed either.
ALL_ON_CPU = ", so everything runs on the CPU"
_SEE = "; `tflgpu devices` says what each backend needs"
_NO_DEVICE = f"no device can run kernels{ALL_ON_CPU}{_SEE}"
_NO_GPU = f"there is no GPU that can be used{ALL_ON_CPU}{_SEE}"


@frozen
class Choice:
    """The device to use; None without a device, where no option names one.

    Attributes:
        device: Which one.
        reasons: Why, and why not the others.
        judgement: What the device database says of it.
        explicit: An option names the backend or device, so that its failure is an error.
        considered: Every device that was looked at, with what became of it.
    """

    device: DeviceInfo | None
    reasons: tuple[str, ...]
    judgement: Judgement = attrs.field(factory=Judgement)
    explicit: bool = False
    considered: tuple[ExaminedDevice, ...] = ()


@frozen
class Candidates:
    """Devices that could be used, best first, and what is to be said of the others; ``left_out``
    are those that the device database denies."""

    found: tuple[Candidate, ...]
    reasons: tuple[str, ...]
    explicit: bool
    left_out: tuple[Candidate, ...] = ()

    @property
    def tiers(self) -> list[list[Candidate]]:
        """Devices among which only measuring can decide; the best tier first."""
        tiers: dict[tuple[bool, bool], list[Candidate]] = {}
        for candidate in self.found:
            tiers.setdefault(candidate.order[:2], []).append(candidate)
        return list(tiers.values())

    def gpus(self) -> Candidates:
        """The real ones among them, with a reason for each of the others."""
        others = [c for c in self.found if not c.is_gpu]
        reasons = [f"{c.label}: left out: no GPU, it computes on the CPU itself" for c in others]
        found = tuple(c for c in self.found if c.is_gpu)
        return attrs.evolve(self, found=found, reasons=(*self.reasons, *reasons))


def find_candidates(
    registry: Registry, options: DelegateOptions, environ: Mapping[str, str] = os.environ
) -> Candidates:
    """List what could be used. Opens nothing.

    A device that was asked for is listed even where the database denies it; of a backend that
    was asked for, such devices come last.

    Raises:
        DeviceError: the backend or device that was asked for is not there; says what is, and
            what would enable the one asked for.
    """
    backend, wanted, why = _asked(options, environ)
    if backend == CPU:
        raise DeviceError(
            f"backend {CPU} ({why}) has no devices; ask for one of them, or leave it out"
        )
    if backend is not None:
        probe = registry.probe(backend)
        if not probe.available or not probe.devices:
            reason = probe.reason or "it has no devices"
            info = registry.backends[backend]
            # Of a Python package that is missing the reason says which command brings it.
            hint = "" if missing_driver(info) else info.system_hint
            may = f"; it may need: {hint}" if hint else ""
            raise DeviceError(f"backend {backend} ({why}) cannot run here: {reason}{may}")
        listed = _pick(backend, probe, wanted)
        found = [_candidate(registry, info, asked=wanted is not None) for info in listed]
        if registry.backends[backend].rank >= 0:
            found.sort(key=lambda c: c.order)
        return Candidates(tuple(found), (f"backend {backend} was {why}",), explicit=True)

    found = []
    reasons: list[str] = []
    for name, info in registry.backends.items():
        probe = registry.probe(name)
        if not probe.available:
            reasons.append(f"{name}: not available: {probe.reason}")
        elif info.rank < 0:
            reasons.append(f"{name}: only used when asked for")
        else:
            devices = probe.devices if wanted is None else _matching(probe, wanted)
            if not devices and str(wanted).startswith(UUID):
                reasons.append(f"{name}: it has {_listed(probe.devices, wanted)}")
            found += [_candidate(registry, d, asked=wanted is not None) for d in devices]
    if wanted is not None and not found:
        raise DeviceError(
            f"no backend has a device {shown(wanted)}; `tflgpu devices` lists what there is. "
            + "; ".join(reasons)
        )
    if wanted is not None:
        reasons.append(f"device {shown(wanted)} was {why}")
    left_out = tuple(c for c in found if not c.allowed)
    reasons += [f"{c.label}: left out: {_known(c)}" for c in left_out]
    found = sorted((c for c in found if c.allowed), key=lambda c: c.order)
    return Candidates(tuple(found), tuple(reasons), wanted is not None, left_out)


def default_choice(registry: Registry) -> Choice:
    """The device that a delegate without options would open, and why; it is opened, and closed
    again. None where what the environment asks for is not there, or broken: that is the reason."""
    try:
        choice, device = open_best(registry, DelegateOptions())
        if device is not None:
            device.close()
    except TflgpuError as error:
        return Choice(None, (str(error),))
    return choice


def open_best(
    registry: Registry,
    options: DelegateOptions,
    environ: Mapping[str, str] = os.environ,
    times: measured_times.MeasuredTimes | None = None,
    *,
    only_gpus: bool = False,
) -> tuple[Choice, Device | NodeDevice | None]:
    """Pick a device and open it; None where everything is to run on the CPU.

    Measured times are kept in ``times``, by default in the user's cache folder. With ``only_gpus``
    a device that computes on the CPU is taken where it is asked for, and not where it would only be
    the best there is.

    Raises:
        DeviceError: as `find_candidates`; or what was asked for cannot be opened.
        PluginError: the same, where its plugin is the reason.
    """
    backend, wanted, why = _asked(options, environ)
    if backend == CPU and wanted is None:
        return Choice(None, (f"backend {CPU} was {why}{ALL_ON_CPU}",), explicit=True), None
    candidates = find_candidates(registry, options, environ)
    if only_gpus and not candidates.explicit:
        candidates = candidates.gpus()
    notes = Notes(list(candidates.reasons))
    errors: list[TflgpuError] = []
    for tier in candidates.tiers:
        order = tier
        if len(tier) > 1 and all(c.rank >= 0 for c in tier):
            folder = measured_times.default_folder()
            store = measured_times.MeasuredTimes(folder) if times is None else times
            order = _by_speed(registry, options, tier, store, notes)
        for candidate in order:
            try:
                device = _opened(registry, options, candidate.info)
            except TflgpuError as error:
                errors.append(error)
                notes.failed(candidate, f"cannot be opened: {error}")
                continue
            notes.say(candidate, f"{candidate.kind}, rank {candidate.rank}")
            if options.memory_limit is not None and offers(device, CountsMemory):
                device.limit_memory(options.memory_limit)
            return _chosen(candidate, notes, candidates), device
    if candidates.explicit and len(errors) == 1:
        raise errors[0]
    if candidates.explicit:
        raise DeviceError("no device that was asked for can be opened: " + "; ".join(notes.reasons))
    return _nothing(notes, candidates, _NO_GPU if only_gpus else _NO_DEVICE), None


# Measuring


def _by_speed(
    registry: Registry,
    options: DelegateOptions,
    tier: Sequence[Candidate],
    times: measured_times.MeasuredTimes,
    notes: Notes,
) -> list[Candidate]:
    """The tier in the order in which to try its devices; adds to the notes."""
    owners = {c.info.backend: registry.distribution(c.info.backend) for c in tier}
    infos = [c.info for c in tier]
    key = measured_times.candidates_key(infos, owners)
    known = times.load(key, len(tier))
    if known is not None:
        pairs = list(zip(tier, known, strict=True))
        for candidate, seconds in pairs:
            notes.timed(candidate, seconds, remembered=True)
        return _fastest_first(pairs)
    fine: list[tuple[Candidate, float]] = []
    failed: list[Candidate] = []
    for candidate in tier:
        # Whatever is wrong with it, there are others.
        took = attempt(_measure, registry, options, candidate.info)
        if isinstance(took, Failed):
            failed.append(candidate)
            why = took.error if isinstance(took.error, TflgpuError) else took
            notes.failed(candidate, f"tried last, it failed the test plan: {why}")
            continue
        if took is None:
            notes.say(candidate, "runs no kernels; its tier goes by rank")
            return [c for c in tier if c not in failed] + failed
        notes.timed(candidate, took, remembered=False)
        fine.append((candidate, took))
    if not failed:
        # A failure may pass (memory that another program holds), so it is not remembered.
        times.store(key, infos, [seconds for _, seconds in fine])
    return _fastest_first(fine) + failed


def measure(device: Device) -> float:
    """As `tflgpu.devices.measure.measure`, which is imported where there is a choice to make."""
    from tflgpu.devices.measure import measure as by_a_plan

    return by_a_plan(device)


def _measure(registry: Registry, options: DelegateOptions, info: DeviceInfo) -> float | None:
    with closing(_opened(registry, options, info)) as device:
        return None if isinstance(device, NodeDevice) else measure(device)


def _opened(registry: Registry, options: DelegateOptions, info: DeviceInfo) -> Device | NodeDevice:
    """Open a device; in a forked child see that it runs something, too."""
    if info.backend not in registry.used_before_fork:
        return registry.open_device(info.backend, info.index, options)

    def try_out() -> Device | NodeDevice:
        device = registry.open_device(info.backend, info.index, options)
        if not isinstance(device, NodeDevice):
            measure(device)
        return device

    return try_in_child(f"{info.backend} device {info.index} ({info.name})", try_out)


def _fastest_first(measured: Sequence[tuple[Candidate, float]]) -> list[Candidate]:
    """By time; the best-ranked of those that are about as fast as the fastest goes first."""
    if not measured:
        return []
    limit = min(seconds for _, seconds in measured) * _MARGIN
    first = next(c for c, seconds in measured if seconds <= limit)
    rest = sorted((pair for pair in measured if pair[0] is not first), key=lambda pair: pair[1])
    return [first, *(c for c, _ in rest)]


# What was asked for


def _asked(
    options: DelegateOptions, environ: Mapping[str, str]
) -> tuple[str | None, int | str | None, str]:
    """Backend, device, and the option or variable that names them."""
    backend, wanted = options.backend, options.device
    why = f"asked for by the option {'device' if backend is None else 'backend'}"
    if backend is None and environ.get("TFLGPU_BACKEND", "").strip():
        backend, why = environ["TFLGPU_BACKEND"].strip(), "asked for by TFLGPU_BACKEND"
    if wanted is None and environ.get("TFLGPU_DEVICE", "").strip():
        wanted = device_from_text("TFLGPU_DEVICE", environ["TFLGPU_DEVICE"])
        if backend is None:
            why = "asked for by TFLGPU_DEVICE"
    return backend, wanted, why


def _matching(probe: Probe, wanted: int | str) -> list[DeviceInfo]:
    if isinstance(wanted, int):
        return [d for d in probe.devices if d.index == wanted]
    if not wanted.startswith(UUID):
        return [d for d in probe.devices if wanted.lower() in d.name.lower()]
    found = [d for d in probe.devices if wanted == f"{UUID}{d.uuid}"]
    if len(found) > 1:
        raise DeviceError(
            f"backend {found[0].backend} has {len(found)} devices {shown(wanted)}, which their "
            f"UUID does not tell apart: {_listed(found)}; ask for one by its index"
        )
    return found


def _pick(backend: str, probe: Probe, wanted: int | str | None) -> list[DeviceInfo]:
    if wanted is None:
        return list(probe.devices)
    matching = _matching(probe, wanted)
    if not matching:
        raise DeviceError(
            f"backend {backend} has no device {shown(wanted)}; it has "
            + _listed(probe.devices, wanted)
        )
    return matching


def _listed(devices: Sequence[DeviceInfo], wanted: int | str | None = None) -> str:
    """Devices as messages list them, with their UUIDs where one was ``wanted``."""
    if not str(wanted).startswith(UUID):
        return ", ".join(f"{d.index}: {d.name}" for d in devices)
    unknown = "whose UUID cannot be told, so that only its index or name can choose it"
    told = (unknown if d.uuid is None else UUID + d.uuid for d in devices)
    return ", ".join(f"{d.index}: {d.name} ({u})" for d, u in zip(devices, told, strict=True))


# Results


def _candidate(registry: Registry, info: DeviceInfo, *, asked: bool) -> Candidate:
    judgement = judge(info, registry.compat_entries(info.backend))
    rank = registry.backends[info.backend].rank
    return Candidate(info, judgement, rank, asked or not judgement.denied)


def _known(candidate: Candidate) -> str:
    return "; ".join(candidate.judgement.reasons)


def _chosen(best: Candidate, notes: Notes, candidates: Candidates) -> Choice:
    known = [f"{best.label}: {reason}" for reason in best.judgement.reasons]
    seen = notes.considered((*candidates.found, *candidates.left_out), best)
    return Choice(best.info, (*notes.reasons, *known), best.judgement, candidates.explicit, seen)


def _nothing(notes: Notes, candidates: Candidates, sentence: str) -> Choice:
    seen = notes.considered((*candidates.found, *candidates.left_out), None)
    return Choice(None, (*notes.reasons, sentence), considered=seen)
