"""Several kernels in one program, for backends whose drivers take long for each program.

PoCL's compiler reads the declarations of all of OpenCL C for each program, 0.2 s of a processor's
time, and has a lock on it, so that threads do not help. A kernel more in a program costs a tenth.
Reading a program from its cache takes 33 ms for any size, so kernels with other functions are
joined too.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from tflgpu.backend_kit.kept_kernels import KeptKernels, P
from tflgpu.backend_kit.kernel_cache import W
from tflgpu.backend_kit.parallel import in_parallel
from tflgpu.errors import CompileError, DeviceError
from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.language.kernel import Kernel


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
    """Programs of as many of those texts as go together, and the texts that stay alone: with a
    function that others have otherwise, or not as the shipped printer writes them."""
    groups: list[_Group] = []
    alone = []
    for source in dict.fromkeys(sources):
        at = source.find(opening.word)
        found = opening.pattern.search(source, at) if at >= 0 else None
        # Only one, and where its word stands.
        if found is None or found.start() != at or source.find(opening.word, at + 1) >= 0:
            alone.append(source)
            continue
        prelude = pieces(source[:at])
        group = next((each for each in groups if each.takes(prelude)), None)
        if group is None:
            group = _Group([each for each in prelude if _is_directive(each)])
            groups.append(group)
        group.add(prelude, source, found)
    alone += [source for group in groups for source in group.sources if len(group.sources) == 1]
    return [group.joined() for group in groups if len(group.sources) > 1], alone


def pieces(prelude: str) -> list[str]:
    """The functions, declarations and directives that a text is of, in order; conditional ones are
    one piece with their conditions."""
    found, lines = [], list[str]()
    depth = conditions = 0
    for line in filter(str.strip, prelude.splitlines()):
        lines.append(line)
        word = line.lstrip()
        depth += line.count("{") - line.count("}")
        conditions += word.startswith("#if") - word.startswith("#endif")
        whole = line.endswith(("}", ";")) or (_is_directive(word) and not line.endswith("\\"))
        if whole and depth <= 0 and conditions <= 0:
            found.append("\n".join(lines))
            lines, depth, conditions = [], 0, 0
    return [*found, "\n".join(lines)] if lines else found


def _is_directive(piece: str) -> bool:
    return piece.startswith("#")


def _name(piece: str) -> str:
    """What a piece defines, as well as its text tells."""
    found = re.search(r"(\w+)\s*\(", piece)
    return found[1] if found and not _is_directive(piece) else piece


class _Group:
    """Texts that go into one program: those that have the same directives, since these apply to the
    rest of the text, and no two functions of one name."""

    def __init__(self, directives: list[str]) -> None:
        self.sources: dict[str, re.Match[str]] = {}
        self._directives = directives
        self._pieces: dict[str, str] = {}

    def takes(self, prelude: list[str]) -> bool:
        """Whether a text with that before its kernel may join."""
        return self._directives == [each for each in prelude if _is_directive(each)] and all(
            self._pieces.get(_name(each), each) == each for each in prelude
        )

    def add(self, prelude: list[str], source: str, found: re.Match[str]) -> None:
        """Have it join. What a piece needs comes before it there, so that it does so here."""
        self._pieces.update({_name(each): each for each in prelude})
        self.sources[source] = found

    def joined(self) -> Joined:
        """The program of all."""
        text, entries = [*self._pieces.values(), ""], {}
        for number, (source, found) in enumerate(self.sources.items()):
            # No two of these are equal, and no helper ends so.
            entry = entries[source] = f"{found[2]}_k{number}"
            text.append(f"{found[1]}{entry}({source[found.end() :]}")
        return Joined("\n".join(text), entries)


class JoinedKernels(KeptKernels[W, P]):
    """`KeptKernels` that join what is compiled at once. A subclass has ``opening``, `_joins` and
    `_from_joined` besides."""

    opening: Opening

    @abstractmethod
    def _joins(self) -> bool:
        """Whether programs are joined. Such a one has no binary that is kept."""

    @abstractmethod
    def _from_joined(self, joined: Joined) -> Mapping[str, P]:
        """Compile, and `count` each kernel; by the text of each one's own program.

        Raises:
            CompileError: the driver refused the program.
            DeviceError: the driver failed.
        """

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

        every: list[Joined | str] = [*programs, *alone]
        in_parallel(self.thread_name, build, every)
