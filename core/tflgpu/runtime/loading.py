"""A compiled graph is loaded: a recording for each part, and a session that runs them in order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np

from tflgpu.backend_kit.progress import Progress, telling
from tflgpu.checks.device import close_all
from tflgpu.compiler.carried_state import CarriedState, Pairs, kept_by
from tflgpu.compiler.parts import Compiled, Part
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_of import placed
from tflgpu.contract.device import Device, NodeDevice, NodeRun, Recording
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.errors import DeviceError, MemoryLimitError
from tflgpu.errors.blame import LOG, attempt
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Value
from tflgpu.lowering.reason import ReasonCode
from tflgpu.options import DelegateOptions, InferencePreference, OnError, WaitType
from tflgpu.plugins.registry import Registry
from tflgpu.runtime.cpu_parts import CpuLoader
from tflgpu.runtime.loaded_part import LoadedPart
from tflgpu.runtime.run_policy import RunPolicy
from tflgpu.runtime.session import Session, make_variables
from tflgpu.runtime.state import StateBuffers, too_large
from tflgpu.values import frozen


@frozen(eq=False)
class Opened:
    """A session wholly on the device, estimated seconds (what it saves a run, and takes), and the
    bytes of its buffers."""

    session: Session
    gain: float
    seconds: float = 0.0
    nbytes: int = 0


@frozen
class Loader:
    """Loads parts on a device, and those of the CPU beside it.

    Attributes:
        device: An opened device.
        known: The registry of ops, and of hooks that see plans.
        cpu: What runs the other parts.
        options: How the device's recordings are loaded and run.
        may_fall_back: Whether a part that the device cannot load runs on the CPU instead.
        whole: Whether even a part for which memory_limit leaves no room is to be an error.
        progress: Told how many of a part's kernels are ready, and of how many.
    """

    device: Device | NodeDevice
    known: Registry
    cpu: CpuSide
    options: DelegateOptions
    may_fall_back: bool
    whole: bool = False
    progress: Progress | None = None

    def open(
        self,
        compiled: Compiled,
        report: Callable[[Compiled], DelegationReport],
        *,
        pairs: Pairs = (),
    ) -> Session:
        """Load all parts. ``report`` is asked last: a part may have gone to the CPU, unless it
        was kept without its nodes. Of ``pairs`` what parts on the device can keep is a variable of
        the session; it says why of the others.

        Raises:
            UnsupportedError: an operator that neither the device nor the CPU can run.
            DeviceError: the device could not load a part, and it may not fall back (what
                memory_limit has no room for may); or the CPU side that was asked for cannot run
                here. Errors of ``report`` pass through; the parts loaded so far are closed then.
        """
        variables = make_variables(compiled.graph)
        on_cpu = CpuLoader(self.cpu, self.known.ops(), variables)
        parts: list[LoadedPart] = []
        kept = self._kept(compiled, pairs) if pairs else None
        not_kept = {} if kept is None else dict(kept.refused)
        try:
            for index, part in enumerate(compiled.parts):
                if part.delegated:
                    loaded, held = (part, ()) if kept is None else kept.of(index, part)
                    arrays = {v.id: np.zeros(v.shape, v.dtype.numpy) for v in held}
                    try:
                        states = (*part.states, *held)
                        parts.append(self._on_device(loaded, {**variables, **arrays}, states))
                        variables.update(arrays)
                        continue
                    except MemoryLimitError as error:
                        if self.whole or not part.nodes:
                            raise
                        compiled = compiled.on_cpu(index, str(error), ReasonCode.DEVICE_LIMIT)
                    except DeviceError as error:
                        if not self.may_fall_back or not part.nodes:
                            raise
                        compiled = compiled.on_cpu(index, self._not_loaded(error))
                    not_kept.update(
                        (v.id, "the device could not load what has to do with it") for v in held
                    )
                parts += on_cpu.load(compiled.parts[index])
            made = report(compiled)
            if on_cpu.placed:
                made = placed(made, on_cpu.placed)
            session = Session(compiled.graph, parts, made, variables)
        except BaseException:
            attempt(close_all, [part.recording for part in parts])
            raise
        session.not_kept = not_kept
        return session

    def open_carrying(
        self,
        compiled: Compiled,
        part: Part,
        states: tuple[Value, ...],
        report: Callable[[Compiled], DelegationReport],
    ) -> Session:
        """A session of one part on the device, which keeps inputs from run to run as variables are
        kept.

        Args:
            compiled: Of which the part is all.
            part: With a plan that has these behind its inputs, and what becomes of them behind its
                outputs.
            states: These inputs.
            report: As `open`.

        Raises:
            DeviceError: the device could not load it.
        """
        variables = {v.id: np.zeros(v.shape, v.dtype.numpy) for v in states}
        loaded = self._on_device(part, variables, states)
        try:
            return Session(compiled.graph, [loaded], report(compiled), variables)
        except BaseException:
            attempt(close_all, [loaded.recording])
            raise

    def _kept(self, compiled: Compiled, pairs: Pairs) -> CarriedState:
        why = self._keeps_nothing()
        if why:
            return CarriedState({}, {given: why for _, given in pairs})
        kept = kept_by(compiled.parts, compiled.refusals, pairs)
        carries, refused = dict(kept.carries), dict(kept.refused)
        for index in kept.carries:
            part, values = kept.of(index, compiled.parts[index])
            assert part.plan is not None
            large = too_large(
                part.plan.arena_bytes + part.plan.edge_bytes, sum(v.nbytes for v in values)
            )
            if large:
                del carries[index]
                refused.update((v.id, large) for v in values)
        return CarriedState(carries, refused)

    def _keeps_nothing(self) -> str:
        """Why nothing is left on the device between runs; "" where it may be."""
        if isinstance(self.device, NodeDevice):
            return (
                f"{self.device.info.backend} runs operators as they are, and keeps no tensors "
                "for them"
            )
        if self.options.guard_bands:
            return "between guard bands (guard_bands) nothing stays on the device"
        if not self._state_may_leave:
            return (
                "somebody may have to go on without the device, which then gives nothing back "
                "(on_error, run_timeout)"
            )
        return ""

    def _on_device(
        self, part: Part, variables: dict[int, Array], states: tuple[Value, ...] | None = None
    ) -> LoadedPart:
        if isinstance(self.device, NodeDevice):
            run = NodeRun(part.nodes, part.inputs, part.outputs, self.known.ops(), variables)
            recording = self.device.load_nodes(run)
        else:
            assert part.plan is not None
            self.known.plan_ready(self.device.info.backend, part.plan)
            with telling(self.progress) if self.progress else nullcontext():
                recording = self.device.load(part.plan, guard_bands=self.options.guard_bands)
        states = part.states if states is None else states
        state = self._state_buffers(part, recording, {v.id: variables[v.id] for v in states})
        if state is not None:
            recording = state
        policy = _run_policy(self.options)
        if self.options.inference_preference is not InferencePreference.FAST_SINGLE_ANSWER:
            try:  # once, on zeros: drivers put work off until a first run
                recording.run() if policy is None else policy.run(recording)
            except BaseException:
                attempt(close_all, [recording])
                raise
        device = None if isinstance(self.device, NodeDevice) else self.device
        return LoadedPart(
            recording,
            part.inputs,
            part.outputs,
            part.label,
            state=state,
            policy=policy,
            device=device,
            nodes=part.nodes if device is None else (),
            outline=None if device is None or part.plan is None else part.plan.outline,
        )

    @property
    def _state_may_leave(self) -> bool:
        """Whether state may lie on the device only, which may never give it back: not where the
        CPU, or a device opened anew, is to go on with it."""
        options = self.options
        return options.run_timeout is None and options.on_error in (None, OnError.RAISE)

    def _state_buffers(
        self, part: Part, recording: Recording, homes: dict[int, Array]
    ) -> StateBuffers | None:
        """What keeps the state of a part that has some; None for others."""
        device, plan = self.device, part.plan
        # A device of nodes has state itself.
        if isinstance(device, NodeDevice) or plan is None or not homes:
            return None
        return StateBuffers(
            recording,
            lambda: device.load(plan),
            device,
            homes,
            nbytes=plan.arena_bytes + plan.edge_bytes,
            may_leave=not self.options.guard_bands and self._state_may_leave,
        )

    def _not_loaded(self, error: DeviceError) -> str:
        info = self.device.info
        where = f"{info.backend} device {info.index} ({info.name})"
        LOG.warning("tflgpu: a part of the model runs on the CPU; %s: %s", where, str(error))
        # Compilers are told to say everything; a line of it is enough for every operator.
        said = next(iter(str(error).splitlines()), type(error).__name__)
        return f"{where} could not load it: {said}"


def _run_policy(options: DelegateOptions) -> RunPolicy | None:
    """How options have recordings run; None where they ask for nothing."""
    wait, loops, timeout = options.wait_type, options.invoke_loop_times, options.run_timeout
    is_plain = wait is WaitType.PASSIVE and loops == 1 and timeout is None
    return None if is_plain else RunPolicy(wait, loops, timeout)
