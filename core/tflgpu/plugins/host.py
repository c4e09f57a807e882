"""The private plugin manager: loads plugins one by one, calls their hooks, drops those that fail.

A plugin of which anything is wrong is left out as a whole: what it had given before it failed must
not be used either, so everything that was collected is filtered once more (`PluginHost.usable`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pluggy

from tflgpu.errors.blame import Failed, Refused, attempt, shown
from tflgpu.plugins import hookspecs
from tflgpu.plugins.sources import GROUP, Plugin, PluginFailure, check_sdk_range
from tflgpu.plugins.values import Kinds, ask


class PluginHost:
    """Registers plugins with pluggy and speaks to each of them by itself.

    Attributes:
        plugins: the plugins in use, in the order in which they were taken.
        failures: those that were left out, in the order in which they failed.
    """

    def __init__(self, plugins: Iterable[Plugin], failures: Iterable[PluginFailure]) -> None:
        """Take the plugins, ordered by distribution and name."""
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self.failures = list(failures)
        self.plugins: list[Plugin] = []
        for plugin in sorted(plugins, key=lambda p: (str(p.distribution), str(p.name))):
            self._guarded(plugin, self._register, plugin)

    def hook(self, plugin: Plugin, name: str) -> pluggy.HookCaller:
        """A hook that reaches one plugin only."""
        others = [p.target for p in self.plugins if p.target is not plugin.target]
        return self._manager.subset_hook_caller(name, others)

    def implementers(self, name: str) -> list[tuple[Plugin, pluggy.HookCaller]]:
        """The plugins in use that have a hook, each with a caller that reaches it only."""
        names = {i.plugin_name for i in getattr(self._manager.hook, name).get_hookimpls()}
        return [(p, self.hook(p, name)) for p in self.plugins if p.name in names]

    def collect(self, name: str, kinds: Kinds, **arguments: object) -> list[tuple[Plugin, Any]]:
        """What each plugin's registration hook gives; one that fails is left out."""
        found: list[tuple[Plugin, Any]] = []
        for plugin, hook in self.implementers(name):
            items: list[Any] = []
            if self._guarded(plugin, ask, hook, kinds, arguments, items):
                found += [(plugin, item) for item in items]
        return found

    def usable(self, found: Iterable[tuple[Plugin, Any]]) -> list[tuple[Plugin, Any]]:
        """What of a collection comes from plugins that are still in use."""
        return [(plugin, item) for plugin, item in found if plugin in self.plugins]

    def refuse_clashes(
        self,
        what: str,
        found: Iterable[tuple[Plugin, Any]],
        shipped: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Refuse plugins that register a name which another plugin or tflgpu registers.

        Of two plugins neither is preferred, so that a user never gets the wrong one unnoticed. A
        plugin cannot take the place of what comes with tflgpu by its name.
        """
        owners: dict[str, list[Plugin]] = {}
        for plugin, item in self.usable(found):
            owners.setdefault(item.name, []).append(plugin)
        taken = set(shipped()) if owners else set()
        for name, plugins in owners.items():
            others = [str(p) for p in plugins] + (["tflgpu"] if name in taken else [])
            if len(others) == 1:
                continue
            for plugin in dict.fromkeys(plugins):
                if plugin.distribution != GROUP or plugins.count(plugin) > 1:
                    text = f"{what} {name} is registered by plugin {' and by '.join(others)}"
                    self._leave_out(plugin, f"{text}; a name can be taken once")

    def _register(self, plugin: Plugin) -> None:
        if not isinstance(plugin.name, str) or not plugin.name:
            raise Refused(f"its name is {shown(plugin.name)}, which is no name")
        if any(p.name == plugin.name for p in self.plugins):
            raise Refused(f"the name {plugin.name} is taken by another plugin")
        if plugin.target is None:  # which pluggy takes, and some versions then cannot let go
            raise Refused("it is None: it has no hooks")
        if self._manager.is_registered(plugin.target):
            raise Refused("it is registered under another name already")
        check_sdk_range(plugin)
        hash(plugin.target)  # pluggy keeps sets of plugins, but would only notice later
        # Only those that it has: some versions of pluggy raise for a name that is not there.
        known = [
            n for n in vars(hookspecs) if n.startswith("tflgpu_") and hasattr(plugin.target, n)
        ]
        hooks = [n for n in known if self._manager.parse_hookimpl_opts(plugin.target, n)]
        unmarked = [n for n in known if n not in hooks]
        if unmarked:
            raise Refused(f"{', '.join(unmarked)} lacks @hookimpl (tflgpu.sdk.plugin.hookimpl)")
        self.plugins.append(plugin)
        self._manager.register(plugin.target, plugin.name)
        # Right after each plugin, so that a misspelt hook is blamed on the one that has it.
        self._manager.check_pending()
        if not hooks:
            raise Refused(
                "it has no hooks; docs/hooks.md lists those that there are, and each is marked "
                "with @hookimpl"
            )

    def _guarded(self, plugin: Plugin, action: Callable[..., object], *args: object) -> bool:
        """Call a plugin; an exception of it makes it a failed plugin."""
        answer = attempt(action, *args)
        if not isinstance(answer, Failed):
            return True
        self._leave_out(plugin, str(answer))
        return False

    def _leave_out(self, plugin: Plugin, why: str) -> None:
        self.failures.append(PluginFailure(str(plugin.name), plugin.distribution, why))
        if plugin in self.plugins:
            self.plugins.remove(plugin)
            if self._manager.is_registered(plugin.target):
                self._manager.unregister(plugin.target)
