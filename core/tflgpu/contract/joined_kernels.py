"""Several kernels in one program, for drivers whose programs cost much whatever is in them: for backends
that want it.

PoCL's compiler reads the declarations of all of OpenCL C for each program, 0.2 s of a processor's
time, and has a lock on it, so that threads do not help. A kernel more in a program costs a tenth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from tflgpu.contract.kept_kernels import KeptKernels, P
from tflgpu.contract.kernel_cache import W
from tflgpu.contract.parallel import in_parallel
from tflgpu.errors import CompileError, DeviceError
from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.language.tree import Kernel


@frozen
class Opening:
    """What a language's printer opens a kernel with.

    Attributes:
        word: The first word, which stands nowhere else.
        pattern: From that word to the parenthesis of the arguments: one group up to the kernel's
            name, and one of the name.
    """

    word: str
    pattern: re.Pattern[str]


@frozen
class Joined:
    """The text of a program of several kernels.

    Attributes:
        text: In the driver's language.
        entries: By the text of each kernel's own program, the kernel's name in this one.
    """

    text: str
    entries: dict[str, str]


def join(sources: Iterable[str], opening: Opening) -> tuple[list[Joined], list[str]]:
    """Programs of those texts that begin with the same functions, and the texts that stay alone:
    with functions that no other has, or not as the shipped printer writes them."""
    groups: dict[str, list[tuple[str, re.Match[str]]]] = {}
    alone = []
    for source in dict.fromkeys(sources):
        at = source.find(opening.word)
        found = opening.pattern.search(source, at) if at >= 0 else None
        # Only one, and where its word stands.
        if found is None or found.start() != at or source.find(opening.word, at + 1) >= 0:
            alone.append(source)
        else:
            groups.setdefault(source[:at], []).append((source, found))
    programs = []
    for prelude, of_group in groups.items():
        if len(of_group) == 1:
            alone += [source for source, _ in of_group]
            continue
        text, entries = [prelude], {}
        for number, (source, found) in enumerate(of_group):
            # No two of these are equal, and no helper ends so.
            entry = entries[source] = f"{found[2]}_k{number}"
            text.append(f"{found[1]}{entry}({source[found.end() :]}")
        programs.append(Joined("\n".join(text), entries))
    return programs, alone


class JoinedKernels(KeptKernels[W, P]):
    """`KeptKernels` that join what is compiled at once. A subclass has ``opening``, `_joins` and
    `_from_joined` besides."""

    opening: Opening

    def _joins(self) -> bool:
        """Whether programs are joined. Such a one has no binary that is kept."""
        raise NotImplementedError

    def _from_joined(self, joined: Joined) -> Mapping[str, P]:
        """Compile, and `count` each kernel; by the text of each one's own program.

        Raises:
            CompileError: the driver refused the program.
            DeviceError: the driver failed.
        """
        raise NotImplementedError

    def _make_all(self, items: Iterator[tuple[Kernel, str]]) -> None:
        if not self._joins():
            super()._make_all(items)
            return
        kernels = {source: kernel for kernel, source in items}
        programs, alone = join(kernels, self.opening)

        def build(sources: Joined | str) -> None:
            if isinstance(sources, str):
                self.make(kernels[sources], sources)
                return
            try:
                with self._building(sources.text):
                    made = self._from_joined(sources)
            except (CompileError, DeviceError):  # each on its own says which one is at fault
                for source in sources.entries:
                    self.make(kernels[source], source)
                return
            for source, each in made.items():
                self.keep(source, each)

        in_parallel(self.thread_name, build, [*programs, *alone])
