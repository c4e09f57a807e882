"""Where compiled graphs are looked up: a given file, a folder, or the compiler.

The folder is a cache: a model that was compiled once is read the next time; a damaged or outdated
file is dropped, and made anew. A file's name is a digest of its key, and the key in it is compared
as well. Two processes that want the same model compile it once. The time of a file is when it was
last used; where the folder is over its limit, those go that were not used for longest.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs

from tflgpu.cache import private_folder
from tflgpu.cache.disk_cache import StoredFile, cache_folder, files_in
from tflgpu.cache.file_lock import one_at_a_time
from tflgpu.cache.whole_file import is_lack, sweep
from tflgpu.compiler import compile_graph
from tflgpu.compiler.parts import Compiled
from tflgpu.contract.device import Device, NodeDevice
from tflgpu.errors import SavedModelError
from tflgpu.errors.blame import LOG
from tflgpu.ir.graph import Graph
from tflgpu.options import DelegateOptions
from tflgpu.plugins.sources import Plugin
from tflgpu.saved.facts import facts_of
from tflgpu.saved.kernel import CodeOf, code_by, hand_over
from tflgpu.saved.key import Key, key_of, name_start
from tflgpu.saved.model import SUFFIX, checked, read_saved, read_start, write_saved
from tflgpu.saved.source import Facts, Source
from tflgpu.saved.start import Start
from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.compiler.target import Target

#: Bytes that a folder may have, unless it is told otherwise.
LIMIT = 2 << 30
#: What it is called in a cache folder.
FOLDER = "models"
_WAIT = 120.0  # seconds to wait for another process that compiles the same
T = TypeVar("T")
#: What a file is called that was kept: digits of digests. Others in the same folder are the user's
#: own.
_KEPT = re.compile(rf"[0-9a-f]{{64}}{re.escape(SUFFIX)}")


def default_folder() -> Path:
    """Where saved models are kept: in TFLGPU_CACHE_DIR, or the user's cache folder."""
    return cache_folder(FOLDER)


def open_or_compile(
    graph: Graph,
    target: Target,
    facts: Callable[[], Facts],
    folder: Path,
    token: str = "",
    *,
    code_of: CodeOf | None = None,
    limit: int = LIMIT,
) -> Compiled:
    """The compiled form of a graph: read from a folder, or compiled and kept there.

    Args:
        graph: As it was read; it is not changed.
        target: What to compile for.
        facts: Gives those of `key_of`.
        folder: Made if it is missing, open to this user only. One that others can write to is not
            used, which is logged.
        token: A name that the user gives the model; part of the key.
        code_of: Gives a device's code of a kernel, which is kept too.
        limit: Bytes from which on the folder loses what was not used for longest.

    Raises:
        PluginError, GraphError: as `tflgpu.compiler.compile.compile`. What goes wrong with files is
            logged.
    """

    def made() -> Compiled:
        return compile_graph(graph, target)

    try:
        tuned = target.site.choices.digest
        key = key_of(graph, target, (("token", token), ("tuned", tuned), *facts()))
    except SavedModelError as error:
        LOG.warning("tflgpu: this model is not kept compiled: %s", str(error))
        return made()
    return open_or_make(
        folder,
        key,
        read=lambda path: read_saved(path, graph, key, made),
        make=made,
        write=lambda path, compiled: write_saved(
            path, compiled, graph, key, code_of, lasting=False
        ),
        limit=limit,
    )


def open_or_make(
    folder: Path,
    key: Key,
    *,
    read: Callable[[Path], T],
    make: Callable[[], T],
    write: Callable[[Path, T], None],
    limit: int = LIMIT,
) -> T:
    """The value that a folder has for a key, or a new one, which is kept there.

    Raises:
        The errors of ``make``. Those of ``read`` and ``write`` are logged.
    """
    path = folder / f"{key.name}{SUFFIX}"
    if not private_folder.make(folder):
        return make()
    found = _read(path, read)
    if found is not None:
        return found
    with one_at_a_time(folder, key.name, _WAIT):
        found = _read(path, read)  # another may have made it since
        if found is not None:
            return found
        made = make()
        try:
            write(path, made)
        except SavedModelError as error:
            private_folder.warn_once(folder, "tflgpu: a compiled model is not kept", f": {error}")
    prune(folder, limit)
    return made


def knows(folder: Path, digest: Callable[[], str]) -> bool:
    """Whether a folder has something of the model's file with this digest."""
    try:
        with os.scandir(folder) as inside:
            names = [each.name for each in inside if each.name.endswith(SUFFIX)]
    except OSError:
        return False
    return bool(names) and any(name.startswith(name_start(digest())) for name in names)


def entries(folder: Path) -> list[StoredFile]:
    """The files that were kept in a folder, last used first; none where there is no folder."""
    return files_in(folder, lambda entry: _KEPT.fullmatch(entry.name) is not None)


def fault(path: Path) -> str:
    """Why a file cannot be used; "" where its digest is right and its name is that of its key."""
    try:
        _, key = checked(path)
    except SavedModelError as error:
        return str(error)
    return "" if path.name == f"{key.name}{SUFFIX}" else "its name is not that of its key"


def prune(folder: Path, limit: int = LIMIT) -> Sequence[StoredFile]:
    """Remove what was not used for longest until the others have at most ``limit`` bytes together,
    and what processes that died have left. Gives what was removed."""
    found, removed = entries(folder), []
    total = sum(entry.nbytes for entry in found)
    for entry in reversed(found):
        if total > limit and drop(entry.path):
            total -= entry.nbytes
            removed.append(entry)
    sweep(folder)
    return removed


def drop(path: Path) -> bool:
    """Remove a file; whether it is gone."""
    try:
        path.unlink(missing_ok=True)  # another process may have removed it
    except OSError as error:
        LOG.warning("tflgpu: %s cannot be removed: %s", path, error.strerror)
        return False
    return True


def _read(path: Path, read: Callable[[Path], T]) -> T | None:
    try:
        found = read(path)
    except SavedModelError as error:
        if not isinstance(error.__cause__, FileNotFoundError) and not is_lack(error.__cause__):
            LOG.warning("tflgpu: a saved model is dropped, and made anew: %s", str(error))
            drop(path)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # used now
    return found


@frozen
class SavedLocation:
    """Where a delegate's compiled models are read and stored.

    Attributes:
        saved: A saved model, in the place of compiling; another graph than its own is refused.
        folder: Where compiled models are kept, and looked for.
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
