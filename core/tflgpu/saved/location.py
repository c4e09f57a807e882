"""Where compiled graphs are looked up: a given file, a folder, or the compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from tflgpu.cache.disk_cache import cache_folder
from tflgpu.compiler import compile_graph
from tflgpu.compiler.parts import Compiled
from tflgpu.contract.device import Device, NodeDevice
from tflgpu.errors import SavedModelError
from tflgpu.ir.graph import Graph
from tflgpu.options import DelegateOptions
from tflgpu.plugins.sources import Plugin
from tflgpu.saved.facts import facts_of
from tflgpu.saved.kernel import code_by, hand_over
from tflgpu.saved.key import Key, key_of
from tflgpu.saved.model import read_saved, read_start, write_saved
from tflgpu.saved.source import Facts, Source
from tflgpu.saved.start import Start
from tflgpu.saved.store import (
    FOLDER,
    default_folder,
    knows,
    open_or_compile,
    open_or_make,
)
from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.compiler.target import Target


@frozen
class SavedLocation:
    """Where a delegate's compiled models are read and stored.

    Attributes:
        saved: A saved model, in the place of compiling; another graph than its own is refused.
        folder: Where compiled models are kept, and looked for (`tflgpu.saved.store`).
        token: The user's name for the model, in that folder.
    """

    saved: Path | None = None
    folder: Path | None = None
    token: str = ""

    def asked(self, options: DelegateOptions) -> SavedLocation:
        """A copy with the folder that the options name, or the user's, where no place is set
        yet."""
        if self.folder is not None or self.saved is not None:
            return self
        if options.cache_root is not None:
            folder = cache_folder(FOLDER, options.cache_root)
            return attrs.evolve(self, folder=folder, token=options.model_token or "")
        if options.enable_serialization is False:
            return self
        return attrs.evolve(self, folder=default_folder())

    def knows(self, digest: Callable[[], str]) -> bool:
        """Whether there is something of the model's file with this digest, so that it was read
        before."""
        return self.folder is not None and knows(self.folder, digest)

    def start(
        self,
        source: Source,
        facts: Facts,
        device: Device,
        make: Callable[[], Start],
    ) -> Start:
        """The start of a model's file: read from the folder, where it is `Start.lean`, or made and
        stored there.

        Raises:
            The errors of ``make``.
        """
        assert self.folder is not None
        key = Key((("token", self.token), *facts, *source.facts))
        found = open_or_make(
            self.folder,
            key,
            read=lambda path: read_start(path, source, key),
            make=make,
            write=lambda path, start: write_saved(
                path, start.lean(), source.graph, key, code_by(device), source, lasting=False
            ),
        )
        hand_over(found.compiled, device)
        return found

    def insist_on_device(self, device: object | None, reasons: str) -> None:
        """Check that there is a device, where a saved model is to run on one.

        Raises:
            SavedModelError: there is none.
        """
        if device is None and self.saved is not None:
            raise SavedModelError(f"{self.saved} is for a device, and there is none: {reasons}")

    def compiled(
        self, graph: Graph, target: Target, device: Device | NodeDevice, plugins: Iterable[Plugin]
    ) -> Compiled:
        """The compiled form of a graph: read where it is saved, else made now.

        Raises:
            SavedModelError: the saved model is not this one for this device.
            PluginError, GraphError: as `tflgpu.compiler.compile.compile`.
        """
        facts = partial(facts_of, device.info, device.caps, plugins)
        if self.saved is not None:
            if isinstance(device, NodeDevice):
                raise SavedModelError(f"{self.saved} has kernels, and this device runs none")
            key = key_of(graph, target, facts(lasting=True), lasting=True)
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
    """Write a file for `SavedLocation.saved`; ``compiled`` is what ``graph`` became on ``target``.

    Raises:
        SavedModelError: something in it cannot be saved, or the file cannot be written.
    """
    facts = facts_of(device.info, device.caps, plugins, lasting=True)
    key = key_of(graph, target, facts, lasting=True)
    write_saved(path, compiled, graph, key, code_by(device))
