"""A backend of two equal devices, which only their UUIDs tell apart: NumPy's references twice.

Workers of engines are other processes, so that it is a plugin that they find: `on_path` makes it
one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tflgpu.contract.device import API_VERSION, BackendInfo, DeviceInfo, Probe
from tflgpu.options import DelegateOptions
from tflgpu.plugins.hookspecs import hookimpl
from tflgpu_cpu_ref.references import ReferenceDevice

NAME = "twins"
UUIDS = "11111111-0000-0000-0000-000000000001", "11111111-0000-0000-0000-000000000002"
DEVICES = tuple(
    DeviceInfo(NAME, index, f"Twin {index}", driver="1", uuid=uuid)
    for index, uuid in enumerate(UUIDS)
)


class Twin(ReferenceDevice):
    """One of the two."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.info = DEVICES[index]


@hookimpl
def tflgpu_register_backends() -> list[BackendInfo]:
    """Only used when asked for."""
    return [BackendInfo(NAME, API_VERSION, rank=-100)]


@hookimpl
def tflgpu_probe(backend: str) -> Probe | None:
    """Both are always there."""
    return Probe(True, devices=DEVICES) if backend == NAME else None


@hookimpl
def tflgpu_open_device(backend: str, index: int, options: DelegateOptions) -> Any:
    """Open one of them."""
    return Twin(index) if backend == NAME else None


def on_path(folder: Path) -> str:
    """A value of PYTHONPATH with this module as an installed plugin, in an empty folder."""
    made = folder / "tflgpu_twins-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: tflgpu-twins\nVersion: 1.0\n")
    (made / "entry_points.txt").write_text("[tflgpu]\ntwins = tflgpu_twins\n")
    (folder / "tflgpu_twins.py").write_text(Path(__file__).read_text(encoding="utf-8"))
    return str(folder)
