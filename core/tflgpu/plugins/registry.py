"""`Registry`: everything that the loaded plugins bring, and reports of those that failed.

The plugin manager is private (`tflgpu.plugins.host`). All other code uses a `Registry`: the values
that plugins registered, and the few hooks that are called later. Plugins are loaded in the order of
distribution and name, and their values are ordered by explicit rank, so that nothing depends on the
order in which packages are found.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from tflgpu.backend_kit.forks import Holder, free_in_child, leave_without_drivers
from tflgpu.checks.device import checked_device
from tflgpu.checks.plugin_caller import PluginCaller
from tflgpu.compat.entry import CompatEntry
from tflgpu.compat.table import SHIPPED
from tflgpu.compiler.plan import Plan
from tflgpu.contract.buffers import ForeignMemory, MemoryKind
from tflgpu.contract.device import Allowances, BackendInfo, Device, NodeDevice, Probe
from tflgpu.errors import (
    DeviceError,
    InputError,
    KernelError,
    OptionError,
    PluginError,
    UnsupportedError,
)
from tflgpu.errors.blame import Failed, attempt, did_you_mean, shown
from tflgpu.ir.edit_guard import ask
from tflgpu.ir.graph import Node
from tflgpu.ir.later import LaterMapping
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.generator import ShaderGenerator
from tflgpu.lowering.reason import ReasonCode, Unsupported
from tflgpu.ops.registry import builtin_ops
from tflgpu.options import CPU, DelegateOptions
from tflgpu.plugins.host import PluginHost
from tflgpu.plugins.sources import GROUP, Plugin, PluginFailure, installed_plugins
from tflgpu.plugins.values import plugin_ops, wrong_allowances, wrong_probe

if TYPE_CHECKING:
    from tflgpu.language.kernel import Kernel
    from tflgpu.lowering.rule import Rule, Site
    from tflgpu.ops.base import OpDef
    from tflgpu.passes.base import Pass

_log = logging.getLogger(__name__)


class Registry(Holder):
    """What the plugins bring. Make one with `registry` or `Registry.of`.

    Safe to use from several threads.
    """

    #: Backends whose driver was loaded before this process was forked.
    used_before_fork: frozenset[str] = frozenset()

    def __init__(self, plugins: Iterable[Plugin], failures: Iterable[PluginFailure] = ()) -> None:
        """Register plugins and collect all that they register. A plugin of which anything is
        wrong is left out as a whole, and listed in `failures`."""
        host = PluginHost(plugins, failures)
        self._host = host
        self._lock = threading.Lock()
        self._probes: dict[str, Probe] = {}
        self.belongs_to_process()

        backends = host.collect("tflgpu_register_backends", lambda: (BackendInfo,))
        ops = host.collect("tflgpu_register_ops", lambda: (plugin_ops().OpDef,))
        passes = host.collect("tflgpu_register_passes", lambda: (plugin_ops().Pass,))
        generators = host.collect("tflgpu_register_generators", lambda: (ShaderGenerator,))
        memory = host.collect("tflgpu_register_memory", lambda: (MemoryKind,))
        host.refuse_clashes("backend", backends, lambda: (CPU,))
        host.refuse_clashes("op", ops, builtin_ops)
        host.refuse_clashes("pass", passes, lambda: plugin_ops().names_of_passes())
        host.refuse_clashes("shader generator", generators)
        host.refuse_clashes("kind of memory", memory)
        names = [info.name for _, info in host.usable(backends)]
        rules = {
            n: host.collect("tflgpu_register_kernels", lambda: plugin_ops().RULES, backend=n)
            for n in names
        }
        entries = {
            n: host.collect("tflgpu_compat_entries", lambda: (CompatEntry,), backend=n)
            for n in names
        }

        # Only now is it known which plugins are in use.
        found = {info.name: (plugin, info) for plugin, info in host.usable(backends)}
        order = sorted(found, key=lambda n: (-found[n][1].rank, n))
        self._owners = {name: found[name][0] for name in order}
        self.backends: Mapping[str, BackendInfo] = {name: found[name][1] for name in order}
        own = {op.name: plugin_ops().checked_op(op, str(p)) for p, op in host.usable(ops)}
        #: Plugins' ops, by name.
        self.own_ops: Mapping[str, OpDef] = own
        # Importing all ops takes longer than starting a model that was compiled before.
        self._merged: Mapping[str, OpDef] = LaterMapping(lambda: {**builtin_ops(), **own})
        marked = [attrs.evolve(item, owner=str(p)) for p, item in host.usable(passes)]
        self._passes = tuple(sorted(marked, key=lambda p: (p.phase, p.name)))
        self._generators = {item.name: (plugin, item) for plugin, item in host.usable(generators)}
        self._memory = tuple(host.usable(memory))
        self._rules: dict[str, tuple[Rule, ...]] = {
            n: tuple(attrs.evolve(rule, owner=str(p)) for p, rule in host.usable(rules[n]))
            for n in order
        }
        self._compat: dict[str, tuple[CompatEntry, ...]] = {
            n: SHIPPED + tuple(entry for _, entry in host.usable(entries[n])) for n in order
        }

    def after_fork(self) -> None:
        """A child may use it too."""
        self.used_before_fork = frozenset(self._probes)
        if self._probes:
            leave_without_drivers()

    @classmethod
    def of(cls, plugins: Mapping[str, object], distribution: str = "explicit") -> Registry:
        """A registry of the given modules or objects, by name; nothing is looked up."""
        return cls(Plugin(name, distribution, target) for name, target in plugins.items())

    # What was registered

    @property
    def failures(self) -> tuple[PluginFailure, ...]:
        """Plugins that could not be used, in the order in which they failed."""
        return tuple(self._host.failures)

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """Plugins in use."""
        return tuple(self._host.plugins)

    def distribution(self, backend: str) -> str:
        """The package that brought a backend.

        Raises:
            DeviceError: there is no such backend.
        """
        self._known(backend)
        return self._owners[backend].distribution

    def ops(self) -> Mapping[str, OpDef]:
        """All ops, shipped ones and plugins', by name."""
        return self._merged

    def rules(self, backend: str) -> tuple[Rule, ...]:
        """Kernel rules that plugins add for a backend (the shipped ones are not among them).

        Raises:
            DeviceError: there is no such backend.
        """
        self._known(backend)
        return self._rules[backend]

    def compat_entries(self, backend: str) -> tuple[CompatEntry, ...]:
        """What the device database has for a backend: shipped entries, then plugins'.

        Raises:
            DeviceError: there is no such backend.
        """
        self._known(backend)
        return self._compat[backend]

    def passes(self) -> tuple[Pass, ...]:
        """Graph passes of plugins, ordered by phase and name."""
        return self._passes

    @property
    def generators(self) -> tuple[str, ...]:
        """The names of the shader generators, in order."""
        return tuple(sorted(self._generators))

    def shader(self, generator: str, kernel: Kernel, caps: DeviceCaps) -> str:
        """The text of a kernel by a shader generator, for a device of some capabilities.

        Raises:
            OptionError: there is no such generator; lists those that there are.
            KernelError: the kernel needs what the capabilities lack.
            PluginError: the generator failed, or gave no text; names its plugin.
        """
        if generator not in self._generators:
            known = ", ".join(self.generators) or "none"
            raise OptionError(f"there is no shader generator {generator!r}; known: {known}")
        plugin, found = self._generators[generator]
        text = attempt(found.source, kernel, caps)
        if isinstance(text, Failed):
            if isinstance(text.error, KernelError):
                raise text.error
            raise PluginError(f"plugin {plugin}: generator {generator}: {text}") from text.error
        if not isinstance(text, str):
            raise PluginError(f"plugin {plugin}: generator {generator} gave {shown(text)}, no text")
        return text

    @property
    def memory_kinds(self) -> tuple[str, ...]:
        """What plugins name that tensors can be bound to, with its article."""
        return tuple(kind.name for _, kind in self._memory)

    def foreign_memory(self, source: object) -> ForeignMemory | None:
        """An object as memory to be bound, by the first plugin that knows its kind; None where
        none does.

        Raises:
            InputError, UnsupportedError: it is known, and cannot be bound.
            PluginError: a plugin failed on it, or answered with something else; names it.
        """
        for plugin, kind in self._memory:
            found = attempt(kind.find, source)
            if isinstance(found, Failed):
                if isinstance(found.error, (InputError, UnsupportedError)):
                    raise found.error
                raise PluginError(f"plugin {plugin}: {kind.name}: {found}") from found.error
            if isinstance(found, ForeignMemory):
                return found
            if found is not None:
                raise PluginError(
                    f"plugin {plugin}: {kind.name}: {shown(found)} is neither a ForeignMemory nor "
                    "None"
                )
        return None

    # Hooks that are called later

    def probe(self, backend: str, *, refresh: bool = False) -> Probe:
        """Whether a backend can run here, and its devices; asked once unless ``refresh``.

        Raises:
            DeviceError: there is no such backend. A failure inside the backend is a reason in the
                result instead.
        """
        info = self._known(backend)
        with self._lock:
            if refresh or backend not in self._probes:
                self._probes[backend] = self._probe(info)
            return self._probes[backend]

    def open_device(
        self, backend: str, index: int, options: DelegateOptions
    ) -> Device | NodeDevice:
        """Open device ``index`` of a backend. It is wrapped (`tflgpu.checks.device`), so that its
        failures are errors that name the plugin.

        Raises:
            DeviceError: there is no such backend, its driver package is missing (the message
                has the command that installs it), or the device cannot be opened or is none.
            PluginError: the backend's plugin did not answer.
        """
        info = self._known(backend)
        missing = missing_driver(info)
        if missing:
            raise DeviceError(f"backend {backend}: {missing}")
        owner = self._owners[backend]
        shipped = owner.distribution == GROUP
        who = "" if shipped else f" (plugin {owner.name} from {owner.distribution})"
        label = f"backend {backend}{who}"
        party = PluginCaller(label, shipped)
        hook = self._host.hook(owner, "tflgpu_open_device")
        device = attempt(hook, backend=backend, index=index, options=options)
        if isinstance(device, Failed):
            if isinstance(device.error, DeviceError):
                party.blame("tflgpu_open_device", device.error)
            hint = f"; it may need: {info.system_hint}" if info.system_hint else ""
            raise DeviceError(f"{label}, device {index}: {device}{hint}") from device.error
        if device is None:
            raise PluginError(f"plugin {owner} has no tflgpu_open_device for backend {backend}")
        return checked_device(device, party, backend, index)

    def node_support(self, backend: str, node: Node, site: Site) -> Unsupported | None:
        """The first objection that a plugin has to running a node, None where there is none.

        A plugin that fails on the question counts as an objection that names it.
        """
        for plugin, hook in self._host.implementers("tflgpu_node_support"):
            answer = ask(hook, node, backend=backend, node=node, site=site)
            if isinstance(answer, Failed):
                return Unsupported(
                    f"plugin {plugin} failed on it: {answer}", ReasonCode.PLUGIN_FAULT
                )
            if answer is None:
                continue
            if isinstance(answer, Unsupported) and isinstance(answer.reason, str):
                return answer
            return Unsupported(
                f"plugin {plugin} answered {shown(answer)}, not Unsupported with a reason or None",
                ReasonCode.PLUGIN_FAULT,
            )
        return None

    def conformance_allowances(self, backend: str) -> Allowances:
        """What a backend says of itself to the conformance suite; the default where it is silent.

        Raises:
            DeviceError: there is no such backend.
            PluginError: its plugin failed on the question, or answered with something else.
        """
        self._known(backend)
        owner = self._owners[backend]
        answer = attempt(self._host.hook(owner, "tflgpu_conformance_allowances"), backend=backend)
        if isinstance(answer, Failed):
            raise PluginError(
                f"plugin {owner} failed in tflgpu_conformance_allowances: {answer}"
            ) from answer.error
        problem = wrong_allowances(answer)
        if problem is not None:
            raise PluginError(f"plugin {owner}, tflgpu_conformance_allowances: {problem}")
        allowances: Allowances = answer or Allowances()
        return allowances

    def plan_ready(self, backend: str, plan: Plan) -> None:
        """Show a plan to the plugins that watch; one that fails is logged."""
        for plugin, hook in self._host.implementers("tflgpu_plan_ready"):
            answer = attempt(hook, backend=backend, plan=plan)
            if isinstance(answer, Failed):
                _log.warning("plugin %s: tflgpu_plan_ready failed: %s", plugin, answer)

    def register_commands(self, app: Any) -> tuple[PluginFailure, ...]:
        """Let plugins add to the command line; gives those that failed."""
        failed = []
        for plugin, hook in self._host.implementers("tflgpu_register_commands"):
            answer = attempt(hook, app=app)
            if isinstance(answer, Failed):
                failed.append(PluginFailure(plugin.name, plugin.distribution, str(answer)))
        return tuple(failed)

    # Inside

    def _known(self, backend: str) -> BackendInfo:
        info = self.backends.get(backend)
        if info is not None:
            return info
        meant = did_you_mean(str(backend).lower(), self.backends)
        there = ", ".join(self.backends) or "none"
        text = f"there is no backend {shown(backend)}{meant}; known: {there}"
        if self._host.failures:
            text += "; not usable: " + "; ".join(str(f) for f in self._host.failures)
        raise DeviceError(text)

    def _probe(self, info: BackendInfo) -> Probe:
        missing = missing_driver(info)
        if missing:
            return Probe(False, missing)
        owner = self._owners[info.name]
        hook = self._host.hook(owner, "tflgpu_probe")
        answer = attempt(hook, backend=info.name)
        if isinstance(answer, Failed):
            return Probe(False, f"its probe failed (plugin {owner}): {answer}")
        problem = wrong_probe(answer, info.name)
        if problem is not None:
            return Probe(False, f"plugin {owner} {problem}")
        probe: Probe = answer
        return probe


def missing_driver(info: BackendInfo) -> str | None:
    """Which of a backend's Python packages are not installed and how to get them, or None."""
    missing = [name for name in info.requires if not _importable(name)]
    if not missing:
        return None
    # Some shells take brackets for a pattern.
    target = f'"tflgpu[{info.extra}]"' if info.extra else " ".join(missing)
    verb = "is" if len(missing) == 1 else "are"
    return f"{', '.join(missing)} {verb} not installed; run: pip install {target}"


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


_registry: Registry | None = None
_registry_lock = free_in_child()


def registry() -> Registry:
    """The registry of the installed plugins, made at the first call. Those that cannot be used
    are warned of, once."""
    global _registry
    with _registry_lock:
        if _registry is None:
            _registry = Registry(*installed_plugins())
            for failure in _registry.failures:
                _log.warning("tflgpu: %s", failure)
        return _registry
