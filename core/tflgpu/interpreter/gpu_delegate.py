"""`GpuDelegate`: options in, a provider of sessions out; and which provider an interpreter has:
its delegate's, the CPU alone, or the shared default one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflgpu.backend_kit.forks import OfProcess
from tflgpu.backend_kit.run_guard import Closable
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_values import AccuracyCheck
from tflgpu.contract.device import Device, NodeDevice
from tflgpu.contract.memory_use import CountsMemory, MemoryUse
from tflgpu.contract.offers import offers
from tflgpu.devices.choose import Choice
from tflgpu.errors import OptionError
from tflgpu.errors.blame import shown
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.precision import Precision
from tflgpu.options import DelegateOptions, OpResolverType, truth
from tflgpu.options.keywords import OptionKeywords, Unpack
from tflgpu.runtime.provider import Provider, cpu_only, device_provider
from tflgpu.saved.kept_choices import Tuning
from tflgpu.saved.location import SavedLocation

if TYPE_CHECKING:
    from tflgpu.hosts.litert import LiteRtHost

#: Switches the default delegate off where it says so: "0", "no", "off", "false".
VARIABLE = "TFLGPU_DEFAULT_DELEGATE"

#: TFLite's op resolvers that bring no default delegate.
_WITHOUT_DEFAULT = (OpResolverType.BUILTIN_REF, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)


class GpuDelegate(Closable, OfProcess):
    """Moves what it can of a model to a GPU; the rest runs on the CPU, with reasons.

        interpreter = tflgpu.Interpreter("model.tflite",
                                         experimental_delegates=[tflgpu.GpuDelegate()])

    Without arguments the best device there is is used. Options are given as keywords, which come
    before environment variables and a file (docs/options.md), or as a `DelegateOptions`. One
    delegate opens one device and may serve several interpreters.
    `ai_edge_litert.interpreter.Interpreter` takes it in the same way.

    ``saved`` is a file that `tflgpu compile` made of the model for this device and these options:
    it is read, and nothing is compiled. It is refused for anything else (`SavedModelError`, when
    tensors are allocated).

    ``progress`` is told, while a model is prepared, how many of its kernels the driver has made
    ready and of how many: ``progress=lambda ready, whole: print(f"{ready} of {whole} kernels")``.
    It is called from threads, one at a time, and may not use the delegate, except that `close`
    takes effect when the model is ready.

    Raises:
        OptionError: an unknown option, a bad value, or a clash.
        DeviceError: the backend or device asked for is not there or cannot be opened.
    """

    def __init__(
        self,
        options: DelegateOptions | None = None,
        *,
        saved: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], object] | None = None,
        **kwargs: Unpack[OptionKeywords],
    ) -> None:
        if saved is not None and not isinstance(saved, (str, os.PathLike)):
            raise OptionError(f"saved is the path of a file, not {type(saved).__name__}")
        if progress is not None and not callable(progress):
            raise OptionError(f"progress is a function of two numbers, not {shown(progress)}")
        path = None if saved is None else Path(saved)
        self.provider: Provider = device_provider(
            given_options(options, kwargs), keeping=SavedLocation(path), progress=progress
        )
        self._opened = self.provider.usable()

    @property
    def options(self) -> DelegateOptions:
        """The options that the delegate was made with."""
        return self.provider.options

    @property
    def device(self) -> Device | NodeDevice | None:
        """The opened device, None where everything runs on the CPU."""
        return self.provider.device

    @property
    def choice(self) -> Choice:
        """Which device, and why."""
        return self._opened.choice

    @property
    def caps(self) -> DeviceCaps:
        """What is used of the device: its capabilities, less what the device database knows to
        be broken."""
        return self._opened.caps

    @property
    def precision(self) -> Precision:
        """The precision in use: the one asked for, or the next that the device has."""
        return self._opened.precision

    @property
    def accuracy_checks(self) -> tuple[AccuracyCheck, ...]:
        """The findings of accuracy guards, the latest last: one for each set of input shapes of
        each graph, when its runs are over. The last ones are kept."""
        return tuple(self.provider.accuracy)

    @property
    def reports(self) -> tuple[DelegationReport, ...]:
        """Inside of LiteRT: what became of each graph that it handed over, the latest last. A model
        has a graph for each of its subgraphs. (`tflgpu.Interpreter` and `tflgpu.Model` have a
        ``report`` each.)
        """
        host = self._litert
        return () if host is None else tuple(host.reports)

    @property
    def memory(self) -> MemoryUse:
        """What everything on this delegate takes of its device at the moment, as the option
        ``memory_limit`` counts it; nothing where there is no device, or one that does not count."""
        return self.device.memory if offers(self.device, CountsMemory) else MemoryUse()

    def _get_native_delegate_pointer(self) -> int:
        """The `TfLiteDelegate*` that TensorFlow Lite's interpreter asks a delegate for.

        Raises:
            UnsupportedError: this TensorFlow Lite keeps its data in a way that is not known here.
            StateError: the delegate is closed, or was opened before a fork.
        """
        from tflgpu.hosts.litert import LiteRtHost  # takes a while, and only LiteRT needs it

        self._opened.check_open()
        host = self._litert
        if host is None:
            # Of two threads that come first together, one sets it, in a step that cannot be
            # divided.
            host = vars(self).setdefault("_host", LiteRtHost(self.provider))
        return host.pointer()

    @property
    def _litert(self) -> LiteRtHost | None:
        """The delegate as LiteRT uses it; made at the first call."""
        return vars(self).get("_host")

    def __repr__(self) -> str:
        opened = vars(self).get("_opened")  # a delegate that failed to open has none
        device = None if opened is None else opened.choice.device
        where = "no device" if device is None else f"{device.backend} device {device.index}"
        return f"<GpuDelegate: {where}{'' if device is None else f', {device.name}'}>"

    def save(
        self, model: str | os.PathLike[str] | bytes, path: str | os.PathLike[str]
    ) -> DelegationReport:
        """Compile a model, by its file or bytes, and write what it becomes to a file, for
        ``saved``: its main subgraph, at the shapes that the model says. Gives where its operators
        will run.

        Raises:
            SavedModelError: there is no device that runs kernels, something in it cannot be saved,
                or the file cannot be written.
            ModelError: no such file, or no well-formed model.
            UnsupportedError: an operator that neither the device nor the CPU can run, or any
                refusal where ``allow_fallback`` is off.
            PluginError, GraphError: a plugin's graph pass or op broke its contract.
        """
        from tflgpu.runtime.saving import save

        return save(self.provider, model, Path(path))

    def tune(
        self,
        model: str | os.PathLike[str] | bytes,
        effort: str = "fast",
        *,
        progress: Callable[[int, int], object] | None = None,
    ) -> Tuning:
        """Time several ways to write the kernels of a model's main subgraph, at the shapes that the
        model says, and keep the fastest: models that are prepared from now on have them, also in
        later processes (docs/tuning.md).

        Args:
            model: A file or its bytes.
            effort: "fast": the most promising six of each problem; "exhaustive": all.
            progress: Told how many steps are done, and of how many.

        Raises:
            OptionError: another effort.
            UnsupportedError: there is no device that runs kernels, it has no timers, or the model
                is run by the piece.
            ModelError, DeviceError, PluginError, GraphError: as `save`.
        """
        from tflgpu.runtime.saving import tune_model

        return tune_model(self._opened, model, effort, progress)

    def _close(self) -> None:
        self._opened.close()


def given_options(options: DelegateOptions | None, kwargs: Mapping[str, object]) -> DelegateOptions:
    """A caller's options: as they are, or gathered from keywords.

    Raises:
        OptionError: both, or as `DelegateOptions.gathered`.
    """
    if options is not None and kwargs:
        raise OptionError("give either a DelegateOptions or keyword options, not both")
    if options is not None:
        if not isinstance(options, DelegateOptions):
            raise OptionError(f"options is a DelegateOptions, not {type(options).__name__}")
        return options
    return DelegateOptions.gathered(kwargs)


def provider_of(
    delegates: Any, resolver: OpResolverType, environ: Mapping[str, str] = os.environ
) -> tuple[DelegateOptions, Provider | None]:
    """Options, and the provider that follows from them; None for the shared default one, which is
    opened when it is needed.

    Args:
        delegates: What the interpreter was given: at most one delegate; None lets the default one
            have its turn, as TFLite's interpreter applies XNNPACK. `DelegateOptions` are for the
            default one.
        resolver: The interpreter's; those that bring no default delegate in TFLite bring none here.
        environ: May switch the default delegate off.

    Raises:
        OptionError: no list of at most one `GpuDelegate`, or an environment variable that says
            neither yes nor no.
    """
    if isinstance(delegates, DelegateOptions):
        options = delegates
    else:
        given = None if delegates is None else one_delegate(delegates)
        if given is not None:
            return given.options, given.provider
        options = DelegateOptions.gathered({}, environ=environ)
        if delegates is not None:
            return options, cpu_only(options)
    if resolver in _WITHOUT_DEFAULT:
        return options, cpu_only(options, f"op resolver {resolver.name} brings no default delegate")
    if not is_switched_on(environ):
        why = f"no delegate was given, and {VARIABLE} switches the default one off"
        return options, cpu_only(options, why)
    return options, None


def is_switched_on(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment lets models have a default delegate.

    Raises:
        OptionError: the variable says something else than yes or no.
    """
    text = environ.get(VARIABLE, "").strip()
    return truth(VARIABLE, text) if text else True


def one_delegate(delegates: Any) -> GpuDelegate | None:
    """The delegate of a list of at most one.

    Raises:
        OptionError: it is no such list.
    """
    try:
        given = list(delegates)
    except TypeError:
        kind = type(delegates).__name__
        raise OptionError(
            f"experimental_delegates is a list of GpuDelegate, not {kind}; write [delegate]"
        ) from None
    if not given:
        return None
    for delegate in given:
        if not isinstance(delegate, GpuDelegate):
            raise OptionError(
                f"experimental_delegates takes tflgpu.GpuDelegate, not {type(delegate).__name__}: "
                "delegates in shared libraries need the native runtime, ai_edge_litert"
            )
    if len(given) > 1:
        raise OptionError(
            f"{len(given)} delegates were given; one GpuDelegate serves the whole model"
        )
    only: GpuDelegate = given[0]
    return only
