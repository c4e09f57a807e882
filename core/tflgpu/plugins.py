"""Plugins: found, loaded one by one, and asked. A broken one is reported; the host goes on.

The plugin manager is private. Everybody else sees a `Registry`: what the plugins registered, as
values, and the few hooks that are called later. Plugins are taken in the order of distribution
and name, and whatever they register is ordered by explicit rank, so that nothing depends on the
order in which packages happen to be found.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any

import attrs
import pluggy

from tflgpu import hookspecs
from tflgpu.compat.entry import CompatEntry
from tflgpu.compat.table import SHIPPED
from tflgpu.errors import DeviceError, PluginError, TflgpuError
from tflgpu.ir.graph import Node
from tflgpu.kernel.rule import ElementwiseRule, KernelRule, Rule, Site, Unsupported
from tflgpu.ops.base import OpDef
from tflgpu.ops.registry import merge_ops
from tflgpu.options import DelegateOptions
from tflgpu.passes.base import Pass
from tflgpu.runtime.forks import Holder, free_in_child, leave_without_drivers
from tflgpu.runtime.profile import Profile
from tflgpu.runtime.protocols import API_VERSION, BackendInfo, Device, NodeDevice, Plan, Probe

GROUP = "tflgpu"
_log = logging.getLogger(__name__)


@attrs.frozen
class Plugin:
    """A plugin that has been imported.

    Attributes:
        name: Of its entry point.
        distribution: The package that brought it.
        target: The module or object whose hooks are called.
    """

    name: str
    distribution: str
    target: object = attrs.field(eq=False, repr=False)

    def __str__(self) -> str:
        return f"{self.name} (from {self.distribution})"


@attrs.frozen
class PluginFailure:
    """A plugin that could not be used, and why."""

    name: str
    distribution: str
    error: str

    def __str__(self) -> str:
        return f"plugin {self.name} (from {self.distribution}): {self.error}"


class _Refused(Exception):
    """A plugin broke the contract; the text says how."""


class Registry(Holder):
    """What the plugins bring. Make one with `registry` or `Registry.of`.

    Safe to use from several threads.
    """

    #: Backends whose driver was loaded before this process was forked.
    used_before_fork: frozenset[str] = frozenset()

    def __init__(self, plugins: Iterable[Plugin], failures: Iterable[PluginFailure] = ()) -> None:
        """Register plugins and collect all that they register.

        Raises:
            PluginError: two of them bring a backend of the same name.
        """
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._failures = list(failures)
        self._plugins: list[Plugin] = []
        self._owners: dict[str, Plugin] = {}
        self._lock = threading.Lock()
        self._probes: dict[str, Probe] = {}
        self.belongs_to_process()
        self._merged: Mapping[str, OpDef] | None = None

        for plugin in sorted(plugins, key=lambda p: (p.distribution, p.name)):
            self._guarded(plugin, self._register, plugin)
        found: dict[str, BackendInfo] = {}
        for plugin, infos in self._collect("tflgpu_register_backends", (BackendInfo,)):
            for info in infos:
                self._claim(info, plugin)
                found[info.name] = info
        self.backends: Mapping[str, BackendInfo] = dict(
            sorted(found.items(), key=lambda item: (-item[1].rank, item[0]))
        )
        self._ops = [
            (str(plugin), op)
            for plugin, ops in self._collect("tflgpu_register_ops", (OpDef,))
            for op in ops
        ]
        passes = [p for _, items in self._collect("tflgpu_register_passes", (Pass,)) for p in items]
        self._passes = tuple(sorted(passes, key=lambda p: (p.phase, p.name)))
        self._rules: dict[str, tuple[Rule, ...]] = {}
        for name in self.backends:
            kinds = (KernelRule, ElementwiseRule)
            pairs = self._collect("tflgpu_register_kernels", kinds, backend=name)
            self._rules[name] = tuple(rule for _, rules in pairs for rule in rules)
        self._compat: dict[str, tuple[CompatEntry, ...]] = {}
        for name in self.backends:
            listed = self._collect("tflgpu_compat_entries", (CompatEntry,), backend=name)
            self._compat[name] = SHIPPED + tuple(e for _, entries in listed for e in entries)

    def after_fork(self) -> None:
        """A child may use it too."""
        self._lock = threading.Lock()
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
        return tuple(self._failures)

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """Plugins in use."""
        return tuple(self._plugins)

    def distribution(self, backend: str) -> str:
        """The package that brought a backend.

        Raises:
            DeviceError: there is no such backend.
        """
        self._known(backend)
        return self._owners[backend].distribution

    def ops(self) -> Mapping[str, OpDef]:
        """All ops, shipped ones and plugins', by name.

        Raises:
            PluginError: a name is taken twice; names both owners.
        """
        with self._lock:
            if self._merged is None:
                self._merged = merge_ops(self._ops)
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

    # Hooks that are called later

    def probe(self, backend: str, *, refresh: bool = False) -> Probe:
        """Whether a backend can run here, and its devices; asked once unless ``refresh``.

        Raises:
            DeviceError: there is no such backend. Whatever goes wrong inside the backend is a
                reason in the result instead.
        """
        info = self._known(backend)
        with self._lock:
            if refresh or backend not in self._probes:
                self._probes[backend] = self._probe(info)
            return self._probes[backend]

    def open_device(
        self, backend: str, index: int, options: DelegateOptions
    ) -> Device | NodeDevice:
        """Open device ``index`` of a backend.

        Raises:
            DeviceError: there is no such backend, its driver package is missing (the message
                has the command that installs it), or the device cannot be opened.
            PluginError: the backend's plugin did not answer.
        """
        info = self._known(backend)
        missing = missing_driver(info)
        if missing:
            raise DeviceError(f"backend {backend}: {missing}")
        owner = self._owners[backend]
        hook = self._hook(owner, "tflgpu_open_device")
        device = _attempt(hook, backend=backend, index=index, options=options)
        if isinstance(device, _Failed):
            if isinstance(device.error, TflgpuError):
                raise device.error
            hint = f"; it may need: {info.system_hint}" if info.system_hint else ""
            raise DeviceError(
                f"backend {backend}, device {index}: {device}{hint}"
            ) from device.error
        if device is None:
            raise PluginError(f"plugin {owner} has no tflgpu_open_device for backend {backend}")
        opened: Device | NodeDevice = device
        return opened

    def node_support(self, backend: str, node: Node, site: Site) -> Unsupported | None:
        """The first objection that a plugin has to running a node, None where there is none.

        A plugin that fails on the question counts as an objection that names it.
        """
        for plugin, hook in self._implementers("tflgpu_node_support"):
            answer = _attempt(hook, backend=backend, node=node, site=site)
            if isinstance(answer, _Failed):
                return Unsupported(f"plugin {plugin} failed on it: {answer}")
            if answer is not None and not isinstance(answer, Unsupported):
                return Unsupported(f"plugin {plugin} answered {answer!r}, not Unsupported or None")
            if answer is not None:
                return answer
        return None

    def conformance_profile(self, backend: str) -> Profile:
        """What a backend says of itself to the conformance suite; the default where it is silent.

        Raises:
            DeviceError: there is no such backend.
            PluginError: its plugin failed on the question, or answered with something else.
        """
        self._known(backend)
        owner = self._owners[backend]
        answer = _attempt(self._hook(owner, "tflgpu_conformance_profile"), backend=backend)
        if isinstance(answer, _Failed):
            raise PluginError(
                f"plugin {owner} failed in tflgpu_conformance_profile: {answer}"
            ) from answer.error
        if answer is not None and not isinstance(answer, Profile):
            raise PluginError(f"plugin {owner} answered {answer!r}, not a Profile or None")
        return answer or Profile()

    def plan_ready(self, backend: str, plan: Plan) -> None:
        """Show a plan to the plugins that watch; one that fails is logged."""
        for plugin, hook in self._implementers("tflgpu_plan_ready"):
            answer = _attempt(hook, backend=backend, plan=plan)
            if isinstance(answer, _Failed):
                _log.warning("plugin %s: tflgpu_plan_ready failed: %s", plugin, answer)

    def register_commands(self, app: Any) -> tuple[PluginFailure, ...]:
        """Let plugins add to the command line; gives those that failed."""
        failed = []
        for plugin, hook in self._implementers("tflgpu_register_commands"):
            answer = _attempt(hook, app=app)
            if isinstance(answer, _Failed):
                failed.append(PluginFailure(plugin.name, plugin.distribution, str(answer)))
        return tuple(failed)

    # Inside

    def _known(self, backend: str) -> BackendInfo:
        info = self.backends.get(backend)
        if info is not None:
            return info
        text = f"there is no backend {backend!r}; known: {', '.join(self.backends) or 'none'}"
        if self._failures:
            text += "; not usable: " + "; ".join(str(f) for f in self._failures)
        raise DeviceError(text)

    def _probe(self, info: BackendInfo) -> Probe:
        missing = missing_driver(info)
        if missing:
            return Probe(False, missing)
        owner = self._owners[info.name]
        hook = self._hook(owner, "tflgpu_probe")
        answer = _attempt(hook, backend=info.name)
        if isinstance(answer, _Failed):
            return Probe(False, f"its probe failed: {answer}")
        if not isinstance(answer, Probe):
            return Probe(False, f"plugin {owner} answered its probe with {answer!r}")
        return answer

    def _claim(self, info: BackendInfo, plugin: Plugin) -> None:
        other = self._owners.setdefault(info.name, plugin)
        if other is not plugin:
            raise PluginError(
                f"backend {info.name} is registered by plugin {other} and by plugin {plugin}; "
                "uninstall one of the two"
            )

    def _register(self, plugin: Plugin) -> None:
        if any(p.name == plugin.name for p in self._plugins):
            raise _Refused(f"the name {plugin.name} is taken by another plugin")
        if self._manager.is_registered(plugin.target):
            raise _Refused("it is registered under another name already")
        hash(plugin.target)  # pluggy keeps sets of plugins, but would only notice later
        self._plugins.append(plugin)
        self._manager.register(plugin.target, plugin.name)
        # Right after each plugin, so that a misspelt hook is blamed on the one that has it.
        self._manager.check_pending()

    def _guarded(self, plugin: Plugin, action: Callable[..., object], *args: object) -> bool:
        """Do something with a plugin; whatever it throws makes it a failed one."""
        answer = _attempt(action, *args)
        if not isinstance(answer, _Failed):
            return True
        self._failures.append(PluginFailure(plugin.name, plugin.distribution, str(answer)))
        if plugin in self._plugins:
            self._plugins.remove(plugin)
            if self._manager.is_registered(plugin.target):
                self._manager.unregister(plugin.target)
        return False

    def _hook(self, plugin: Plugin, name: str) -> pluggy.HookCaller:
        """A hook that reaches one plugin only."""
        others = [p.target for p in self._plugins if p.target is not plugin.target]
        return self._manager.subset_hook_caller(name, others)

    def _implementers(self, name: str) -> list[tuple[Plugin, pluggy.HookCaller]]:
        names = {i.plugin_name for i in getattr(self._manager.hook, name).get_hookimpls()}
        return [(p, self._hook(p, name)) for p in self._plugins if p.name in names]

    def _collect(
        self, name: str, kinds: tuple[type, ...], **arguments: object
    ) -> list[tuple[Plugin, list[Any]]]:
        """What each plugin's registration hook gives; one that fails is dropped."""
        found: list[tuple[Plugin, list[Any]]] = []
        for plugin, hook in self._implementers(name):
            items: list[Any] = []
            if self._guarded(plugin, _ask, hook, kinds, arguments, items):
                found.append((plugin, items))
        return found


def _ask(
    hook: pluggy.HookCaller, kinds: tuple[type, ...], arguments: Mapping[str, object], to: list[Any]
) -> None:
    """Call a registration hook and append what it lists to ``to``, checked."""
    wanted = " or ".join(k.__name__ for k in kinds)
    for answer in hook(**arguments):
        if not isinstance(answer, (list, tuple)):
            raise _Refused(f"{hook.name} gave {type(answer).__name__}, not a list of {wanted}")
        for item in answer:
            if not isinstance(item, kinds):
                raise _Refused(f"{hook.name} gave a {type(item).__name__}, not a {wanted}")
            if isinstance(item, BackendInfo) and item.api_version != API_VERSION:
                raise _Refused(
                    f"backend {item.name} is written for API version {item.api_version}, this "
                    f"tflgpu has {API_VERSION}; upgrade the older of the two"
                )
        to.extend(answer)


@attrs.frozen
class _Failed:
    """What a plugin threw, as a value."""

    error: BaseException

    def __str__(self) -> str:
        if isinstance(self.error, _Refused):
            return str(self.error)
        kind, text = type(self.error).__name__, str(self.error)
        return f"{kind}: {text}" if text else kind


def _attempt(action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The one place where any exception of a plugin is caught; it comes back as a value.

    SystemExit too: a plugin that calls sys.exit must not end the host.
    """
    try:
        return action(*args, **kwargs)
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return _Failed(error)


def missing_driver(info: BackendInfo) -> str | None:
    """Which of a backend's Python packages are not installed and how to get them, or None."""
    missing = [name for name in info.requires if not _importable(name)]
    if not missing:
        return None
    target = f"tflgpu[{info.extra}]" if info.extra else " ".join(missing)
    verb = "is" if len(missing) == 1 else "are"
    return f"{', '.join(missing)} {verb} not installed; run: pip install {target}"


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _load_entry_points() -> tuple[list[Plugin], list[PluginFailure]]:
    """Import what is installed, one at a time."""
    plugins: list[Plugin] = []
    failures: list[PluginFailure] = []
    for entry in entry_points(group=GROUP):
        distribution = entry.dist.name if entry.dist is not None else "an unknown distribution"
        target = _attempt(entry.load)
        if isinstance(target, _Failed):
            failures.append(PluginFailure(entry.name, distribution, str(target)))
        else:
            plugins.append(Plugin(entry.name, distribution, target))
    return plugins, failures


_registry: Registry | None = None
_registry_lock = free_in_child()


def registry() -> Registry:
    """The registry of the installed plugins, made at the first call.

    Raises:
        PluginError: two plugins bring a backend of the same name.
    """
    global _registry
    with _registry_lock:
        if _registry is None:
            _registry = Registry(*_load_entry_points())
        return _registry
