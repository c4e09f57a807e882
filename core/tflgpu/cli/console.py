"""The console: results go to stdout, progress and warnings to stderr."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tflgpu.errors import InputError

#: Control characters but for the ends of lines and tabs.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: Exit codes: 0 fine, 1 a result is wrong, 2 an error (click's own code for a wrong call too).
ERROR = 2
#: Characters of an error message: some list every operator of a model.
_LONGEST = 800
#: Characters that a column has at least, and the gap before it.
_LEAST = 4
#: Seconds without a sign of life where stderr is no terminal.
_SILENCE = 5.0

# Made for each use, because a test (or a pipe) may have replaced the streams since.


def prepare_streams() -> None:
    """For the script: names of tensors and files may have any characters, and not every terminal or
    pipe has all of them (a Windows console, LC_ALL=C). Such characters are written by their
    numbers, so that a command never ends in the middle of its table. Closed streams drop what is
    written to them.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (to the end)
            setattr(sys, name, nowhere)
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _written() -> Iterator[None]:
    """A context whose printed lines are written when it is left.

    Raises:
        typer.Exit: it cannot be (a full disk), which is said in one line. That a reader has gone
            away is click's to know.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.EINVAL):
            raise
        fail(f"the output cannot be written: {error.strerror}")
        raise typer.Exit(ERROR) from error


def _harmless(text: str) -> str:
    """Names come from files that may not be trusted: a terminal would obey the control characters
    in them."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class _Harmless:
    """Something of rich's, with the control characters of its texts as what they are."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Its segments; those that are control codes are rich's own."""
        for made in console.render(self._inner, options):
            yield made if made.control else Segment(_harmless(made.text), made.style)


def out() -> Console:
    """The console of results."""
    # A pipe has no width; a table that folds less is easier on `grep`.
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Console(width=width, markup=False, highlight=False)


def err() -> Console:
    """The console of everything that is not a result."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


def fail(message: str) -> None:
    """One red line on stderr, cut where it would fill the screen."""
    line = _harmless(" ".join(message.split()))
    if len(line) > _LONGEST:
        line = f"{line[:_LONGEST]} ... ({len(line) - _LONGEST} more characters; --debug has them)"
    err().print(f"[bold red]error:[/] [red]{escape(line)}[/]")


def warn(message: str) -> None:
    """One yellow line on stderr."""
    err().print(f"[yellow]warning:[/] {escape(_harmless(message))}")


def note(message: str) -> None:
    """One line on stderr that is neither a result nor a fault."""
    err().print(f"[dim]note:[/] {escape(_harmless(message))}")


def say(message: str) -> None:
    """One line of results, printed as it is, however long."""
    with _written():
        out().print(_harmless(message), soft_wrap=True)


def piece(text: str) -> None:
    """A part of a result, at once and without a line's end."""
    with _written():
        sys.stdout.write(_harmless(text))


def plain(text: str) -> None:
    """Text for a compiler or a pager: no colours, no folds."""
    with _written():
        print(_harmless(text))  # noqa: T201


def table(
    title: str, *columns: str, right: tuple[str, ...] = (), whole: tuple[str, ...] = ()
) -> Table:
    """An empty table; the columns in ``right`` hold numbers. Those in ``whole`` are short, and
    others fold before they do: names to be copied, numbers to be read."""
    made = Table(title=title, box=None, pad_edge=False)
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in right else "left",
            overflow="fold",
            no_wrap=column in whole,
            header_style="dim",
        )
    return made


def show(made: Table) -> None:
    """Print a table; cells fold where the terminal is narrow. Its title, a file's path perhaps,
    does not."""
    title, made.title = made.title, None
    _fold_all_if_narrow(made)
    with _written():
        if title:
            said = title.plain if isinstance(title, Text) else str(title)
            out().print(_harmless(said), style="bold", soft_wrap=True)
        out().print(_Harmless(made))
        out().print()


def _fold_all_if_narrow(made: Table) -> None:
    """Fold every column where the unfolded ones leave no room for the others."""
    whole = [column for column in made.columns if column.no_wrap]
    needed = sum(max(cell_len(str(text)) for text in (c.header, *c.cells)) for c in whole)
    if needed + _LEAST * len(made.columns) > out().width:
        for column in whole:
            column.no_wrap = False


def write(path: Path, text: str) -> None:
    """Write a file that was asked for.

    Raises:
        InputError: it cannot be.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error}") from error
    err().print(f"wrote {path}", markup=False)


def show_json(value: Any) -> None:
    """Print a value for other programs, without colours or folds."""
    plain(json.dumps(value, indent=2))


#: What `working` is about: a delegate is made before it is known what for.
_works: list[Activity] = []


class Activity:
    """Something that takes its time, and how far it is."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.said = self._what

    def kernels(self, ready: int, whole: int) -> None:
        """So many kernels are ready, of so many."""
        self.said = f"{self._what}: {ready} of {whole} kernels"


def kernels(ready: int, whole: int) -> None:
    """A delegate's `progress`: hands the count of kernels to every open `working`."""
    for work in _works:
        work.kernels(ready, whole)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner while something takes its time, with the number of kernels that are ready. Where
    stderr is no terminal, a line there every few seconds shows that the command is still at work.
    """
    console, work, ended = err(), Activity(what), threading.Event()
    _works.append(work)

    def tell() -> None:
        while not ended.wait(_SILENCE):
            console.print(f"{escape(work.said)} ...")

    def turn() -> None:
        with console.status(escape(work.said)) as status:
            while not ended.wait(0.1):
                status.update(escape(work.said))

    teller = threading.Thread(target=turn if console.is_terminal else tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
        _works.remove(work)


@contextmanager
def counting(*, enabled: bool = True) -> Iterator[Progress]:
    """A progress bar for ``progress.track(...)``, gone when done."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
    )
    console = err()
    with Progress(
        *columns, console=console, transient=True, disable=not (enabled and console.is_terminal)
    ) as progress:
        yield progress
