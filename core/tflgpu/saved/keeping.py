"""Where compiled graphs come from: a file that was asked for, a folder that keeps them, or the
compiler."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import attrs

from tflgpu.compiler.compile import Compiled
from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device, NodeDevice
from tflgpu.errors import SavedModelError
from tflgpu.ir.graph import Graph
from tflgpu.options import DelegateOptions
from tflgpu.plugin_sources import Plugin
from tflgpu.saved.code import code_by, hand_over
from tflgpu.saved.facts import facts_of
from tflgpu.saved.key import Facts, key_of
from tflgpu.saved.model import read_saved, write_saved
from tflgpu.saved.store import FOLDER, open_or_compile


@attrs.frozen
class Keeping:
    """What was asked for.

    Attributes:
        saved: A saved model, in the place of compiling; another graph than its own is refused.
        folder: Where compiled models are kept, and looked for (`tflgpu.saved.store`).
        token: The user's name for the model, in that folder.
    """

    saved: Path | None = None
    folder: Path | None = None
    token: str = ""

    def asked(self, options: DelegateOptions) -> Keeping:
        """The same with the folder that options name, where there is none yet."""
        if self.folder is not None or options.cache_root is None:
            return self
        folder = Path(options.cache_root) / FOLDER
        return attrs.evolve(self, folder=folder, token=options.model_token or "")

    def insist_on_device(self, device: object | None, reasons: str) -> None:
        """That there is a device, where a saved model is to run on it.

        Raises:
            SavedModelError: there is none.
        """
        if device is None and self.saved is not None:
            raise SavedModelError(f"{self.saved} is for a device, and there is none: {reasons}")

    def compiled(
        self, graph: Graph, target: Target, device: Device | NodeDevice, plugins: Iterable[Plugin]
    ) -> Compiled:
        """What a graph becomes.

        Raises:
            SavedModelError: the saved model is not this one for this device.
            PluginError, GraphError: as `tflgpu.compiler.compile.compile`.
        """
        facts = partial(_facts, device, plugins)
        if self.saved is not None:
            if isinstance(device, NodeDevice):
                raise SavedModelError(f"{self.saved} has kernels, and this device runs none")
            key = key_of(graph, target, facts())
            return hand_over(read_saved(self.saved, graph, key), device)
        if self.folder is None or isinstance(device, NodeDevice):
            return compile_graph(graph, target)
        found = open_or_compile(
            graph, target, facts, self.folder, self.token, code_of=code_by(device)
        )
        return hand_over(found, device)


def write(
    path: Path,
    compiled: Compiled,
    graph: Graph,
    target: Target,
    device: Device,
    plugins: Iterable[Plugin],
) -> None:
    """Write a file for `Keeping.saved`; ``compiled`` is what ``graph`` became on ``target``.

    Raises:
        SavedModelError: something in it cannot be saved, or the file cannot be written.
    """
    key = key_of(graph, target, _facts(device, plugins))
    write_saved(path, compiled, graph, key, code_by(device))


def _facts(device: Device | NodeDevice, plugins: Iterable[Plugin]) -> Facts:
    return facts_of(device.info, device.caps, plugins)
