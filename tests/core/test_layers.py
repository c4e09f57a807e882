"""Imports go downward, the core knows no backend, and files stay short. Read, not imported.

An import of a module of the core counts wherever it stands: in a function, under `TYPE_CHECKING`,
and as the module's name in a string, which something imports by `import_module`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core" / "tflgpu"
BACKENDS = ROOT / "backends"
MAX_LINES = 450

# A module imports only from its own room and from those above it in this list. Names are the
# longest dotted prefix under `tflgpu` that is listed; a new module needs a place here.
ROOMS = (
    "values",
    "errors",
    "cache",
    "ir",
    "ops",
    "language",
    "lowering",
    "kernels",
    "passes",
    "tflite",
    "compiler",
    "contract",
    "backend_kit",
    "checks",
    "options",
    "compat",
    "plugins",
    "devices",
    "profiles",
    "saved",
    "runtime",
    "flow",
    "hosts",
    "interpreter",
    "compiled_model",
    "language_models",
    "sdk",
    "conformance",
    "demo",
    "integrations",
    "tools",
    "cli",
    "",  # tflgpu/__init__.py: the public names
    "__main__",  # the script
)
LEVEL = {name: level for level, name in enumerate(ROOMS)}

# What a backend may build on: the seams, and nothing that orchestrates.
SEAMS = (
    "errors", "ir", "ops", "language", "lowering", "kernels", "compiler.plan",
    "compiler.references", "cache", "contract", "backend_kit", "options", "compat",
    "plugins.hookspecs", "runtime.reference", "tflite.bodies", "tflite.cut", "tflite.schema",
    "tflite.spec",
)  # fmt: skip


def python_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def module_of(path: Path) -> str:
    """The dotted name below `tflgpu`, "" for the package itself."""
    parts = list(path.relative_to(CORE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {f"tflgpu.{module_of(path)}": path for path in python_files(CORE)}


def level_of(module: str) -> int | None:
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        level = LEVEL.get(".".join(parts[:length]))
        if level is not None:
            return level
    return None


Import = tuple[int, str]


@cache
def _found(path: Path) -> tuple[list[Import], list[Import]]:
    """Imports that a file makes when it runs, and every one. The tree is not kept: those of all
    files are 1.3 million objects, through which each later search for garbage would go."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return list(_imports(tree.body)), list(_every_import(tree))


def imports(path: Path) -> list[Import]:
    """Line and absolute name of whatever a file imports when it runs (not for typing alone)."""
    return _found(path)[0]


def _imports(body: list[ast.stmt]) -> Iterator[Import]:
    for statement in body:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test):
            yield from _imports(statement.orelse)
        elif isinstance(statement, ast.Import):
            yield from ((statement.lineno, alias.name) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, f"line {statement.lineno}: a relative import"
            assert statement.module is not None
            # `from tflgpu import ops` imports the module tflgpu.ops.
            for alias in statement.names:
                inner = f"{statement.module}.{alias.name}"
                is_module = statement.module == "tflgpu" or inner in MODULES
                yield statement.lineno, inner if is_module else statement.module
        else:
            for field in ("body", "orelse", "finalbody"):
                nested = getattr(statement, field, [])
                yield from _imports(nested if isinstance(nested, list) else [])
            for handler in getattr(statement, "handlers", []):
                yield from _imports(handler.body)


def _every_import(tree: ast.Module) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from _imports([node])
        elif isinstance(node, ast.Constant) and node.value in MODULES and node.value != "tflgpu.":
            yield node.lineno, node.value


def every_import(path: Path) -> list[Import]:
    """Line and module of the core, of imports wherever they stand, and of names in strings."""
    return _found(path)[1]


def core_imports(path: Path) -> Iterator[Import]:
    """Line and name below `tflgpu` of what a file imports from the core."""
    for line, name in imports(path):
        if name.startswith("tflgpu."):
            yield line, name.removeprefix("tflgpu.")


def test_imports_go_downward() -> None:
    wrong = []
    for path in python_files(CORE):
        own = level_of(module_of(path))
        if own is None:
            wrong.append(f"{path.relative_to(ROOT)} has no room; add it to ROOMS")
            continue
        for line, name in every_import(path):
            # `from tflgpu import GpuDelegate`: a name of the package, above every layer.
            level = level_of(name.removeprefix("tflgpu."))
            if name.startswith("tflgpu.") and (LEVEL[""] if level is None else level) > own:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name} from above")
    assert not wrong, "\n".join(wrong)


def test_every_room_is_there() -> None:
    there = {module_of(path).split(".")[0] for path in python_files(CORE)}
    assert there == set(ROOMS)


def test_the_rooms_are_listed_in_their_order() -> None:
    """CONTRIBUTING.md has the rooms."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = text[text.index("core/tflgpu/\n") : text.index("backends/*")].splitlines()[1:]
    names = [n.strip(" /") for line in listed for n in line.strip().split("  ")[0].split(",")]
    assert len(names) > 25
    assert names == sorted(names, key=LEVEL.__getitem__)
    assert set(ROOMS) - set(names) == {""}


@cache
def import_graph() -> Mapping[str, set[str]]:
    """The modules of the core that each of them imports."""
    return {
        module: {name for _, name in every_import(path) if name in MODULES and name != module}
        for module, path in MODULES.items()
    }


def circles(imported: Mapping[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, directly or not."""
    reached: dict[str, set[str]] = {}
    for module in imported:
        found, ahead = set[str](), [module]
        while ahead:
            new = imported.get(ahead.pop(), set()) - found
            found |= new
            ahead += new
        reached[module] = found
    in_circles = {m for m in imported if m in reached[m]}
    groups = {
        tuple(sorted(m for m in in_circles if m in reached[n] and n in reached[m]))
        for n in in_circles
    }
    return sorted(map(list, groups))


def test_no_modules_import_each_other() -> None:
    assert sum(map(len, import_graph().values())) > 500
    assert circles(import_graph()) == []


def floors(imported: Mapping[str, set[str]]) -> dict[str, int]:
    """How many rooms are below each other: 1 for a room that imports from none."""
    found: dict[str, int] = {}

    def floor(room: str) -> int:
        if room not in found:
            found[room] = 1 + max((floor(r) for r in imported[room]), default=0)
        return found[room]

    for room in imported:
        floor(room)
    return found


def test_the_house_is_low() -> None:
    """Rooms stand on few floors, and few modules of the core stand in no room."""
    rooms: dict[str, set[str]] = {}
    for module, names in import_graph().items():
        own = _room(module)
        rooms.setdefault(own, set()).update({_room(name) for name in names} - {own})
    assert circles(rooms) == []
    assert 10 < max(floors(rooms).values()) <= 17  # tools stand between interpreter and cli
    loose = {path.stem for path in CORE.glob("*.py")} - {"__init__", "__main__"}
    assert len(loose) <= 3, loose


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_floors_are_counted() -> None:
    assert floors({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": 3, "b": 2, "c": 1}


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"a"}, "b": {"a"}}) == [["a"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_the_core_knows_no_backend() -> None:
    backends = {p.name for p in BACKENDS.glob("*/tflgpu_*")}
    assert backends
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in python_files(CORE)
        for line, name in imports(path)
        if name.split(".")[0] in backends
    ]
    assert not wrong, "\n".join(wrong)


def test_backends_build_on_the_seams_only() -> None:
    checked = 0
    for path in python_files(BACKENDS):
        for line, name in core_imports(path):
            checked += 1
            is_seam = any(f"{name}.".startswith(f"{seam}.") for seam in SEAMS)
            assert is_seam, f"{path.relative_to(ROOT)}:{line} imports {name}"
    assert checked


def test_backends_do_not_know_each_other() -> None:
    for path in python_files(BACKENDS):
        own = path.relative_to(BACKENDS).parts[1]
        for line, name in imports(path):
            package = name.split(".")[0]
            other = package.startswith("tflgpu_") and package != own
            assert not other, f"{path.relative_to(ROOT)}:{line} imports {name}"


def test_files_are_short() -> None:
    files = python_files(CORE) + python_files(BACKENDS)
    lengths = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in files}
    long = {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > MAX_LINES}
    assert not long, f"more than {MAX_LINES} lines: {long}"


def test_no_two_files_of_tests_have_one_name() -> None:
    """Tests are no packages: pytest imports each file by its name alone, so the second of a name
    is not found, or, of two helpers, the wrong one is."""
    files = [p for p in python_files(ROOT / "tests") if not (p.parent / "__init__.py").exists()]
    names = Counter(p.name for p in files if p.name not in ("conftest.py", "__main__.py"))
    assert len(names) > 100
    assert [name for name, count in names.items() if count > 1] == []


def test_the_reader_of_imports_reads_them(tmp_path: Path) -> None:
    source = tmp_path / "sample.py"
    source.write_text(
        "from typing import TYPE_CHECKING\n"
        "from tflgpu import ops, errors\n"
        "if TYPE_CHECKING:\n    import tflgpu.delegate\nelse:\n    import tflgpu.ir\n"
        "def late():\n    from tflgpu.cli.app import main\n"
        "try:\n    import a.b\nexcept ImportError:\n    import c\nfinally:\n    import d\n"
    )
    assert [name for _, name in imports(source)] == [
        "typing", "tflgpu.ops", "tflgpu.errors", "tflgpu.ir", "tflgpu.cli.app", "a.b", "d", "c",
    ]  # fmt: skip
