"""Finds the installed plugins by their entry points and imports them one by one."""

from __future__ import annotations

import time

import attrs

from tflgpu.errors.blame import Failed, Refused, attempt, shown
from tflgpu.plugins.installed import entry_points
from tflgpu.values import frozen

#: Group of entry points, and the distribution that brings the shipped ones.
GROUP = "tflgpu"

#: Of what `tflgpu.sdk` offers, and the name by which a plugin says for which versions it was
#: written.
SDK_VERSION = "1.0"
SDK_RANGE = "TFLGPU_SDK"


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


def check_sdk_range(plugin: Plugin) -> None:
    """Refuse a plugin that was written for other versions of `tflgpu.sdk`. It states them beside
    its hooks, ``TFLGPU_SDK = ">=1.0,<2"``, as Python's packages do; without it any version will do.

    Raises:
        Refused: another version, or what it states is no range.
    """
    stated = getattr(plugin.target, SDK_RANGE, None)
    if stated is None:
        return
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # few plugins are not shipped

    try:
        wanted = SpecifierSet(stated) if isinstance(stated, str) and stated.strip() else None
    except InvalidSpecifier:
        wanted = None
    if wanted is None:
        raise Refused(
            f'{SDK_RANGE} is {shown(stated)}, which is no range of versions; write it as ">=1.0,<2"'
        )
    if not wanted.contains(SDK_VERSION, prereleases=True):
        raise Refused(
            f"it was written for tflgpu.sdk {stated}, and this tflgpu has {SDK_VERSION}; install a "
            f"version of {plugin.distribution} for {SDK_VERSION}, or a tflgpu with such a "
            "tflgpu.sdk"
        )


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
