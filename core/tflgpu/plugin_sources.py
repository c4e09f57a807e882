"""The plugins that are installed: found by their entry points and imported one by one."""

from __future__ import annotations

import time

import attrs

from tflgpu.blame import Failed, attempt
from tflgpu.installed import entry_points
from tflgpu.values import frozen

#: Group of entry points, and the distribution that brings the shipped ones.
GROUP = "tflgpu"


@attrs.frozen  # every start compares or shows some
class Plugin:
    """A plugin that has been imported.

    Attributes:
        name: Of its entry point.
        distribution: The package that brought it.
        target: The module or object whose hooks are called.
        seconds: How long importing it took.
    """

    name: str
    distribution: str
    target: object = attrs.field(eq=False, repr=False)
    seconds: float = attrs.field(default=0.0, eq=False)

    def __str__(self) -> str:
        return f"{self.name} (from {self.distribution})"


@frozen
class PluginFailure:
    """A plugin that could not be used, and why."""

    name: str
    distribution: str
    error: str

    def __str__(self) -> str:
        return f"plugin {self.name} (from {self.distribution}): {self.error}"


def installed_plugins() -> tuple[list[Plugin], list[PluginFailure]]:
    """Import what is installed; one that fails is listed, and the rest goes on."""
    plugins: list[Plugin] = []
    failures: list[PluginFailure] = []
    for entry in entry_points(group=GROUP):
        found = attempt(lambda entry=entry: entry.dist.name)
        distribution = found if isinstance(found, str) else "an unknown distribution"
        start = time.perf_counter()
        target = attempt(entry.load)
        if isinstance(target, Failed):
            failures.append(PluginFailure(entry.name, distribution, str(target)))
        else:
            seconds = time.perf_counter() - start
            plugins.append(Plugin(entry.name, distribution, target, seconds))
    return plugins, failures
