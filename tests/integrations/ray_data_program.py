"""Ray Data in a local Ray; what comes of it is written as JSON. `test_ray_engine` runs it.

python ray_data_program.py OUT FOLDER BACKEND UUID UUID
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import ray
from tflgpu import Model
from tflgpu.demo import load_digits
from tflgpu.integrations.ray import Predictor

DIGITS = load_digits()
COUNT = 70


class OnDevice(Predictor):
    """Adds the name of the device that computed a row."""

    def __init__(self, model: bytes, **options: Any) -> None:
        super().__init__(model, **options)
        self._device = self._pool.reports[0].device

    async def __call__(self, columns: Any) -> Any:
        found = await super().__call__(columns)
        return {**found, "device": np.full(len(found["id"]), self._device, np.object_)}


class KilledOnce(Predictor):
    """Its process is killed in the middle of its work, the first time."""

    def __init__(self, model: bytes, mark: str, **options: Any) -> None:
        super().__init__(model, **options)
        self._mark = Path(mark)

    async def __call__(self, columns: Any) -> Any:
        found = await super().__call__(columns)
        if 30 in found["id"] and not self._mark.exists():
            self._mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return {**found, "pid": np.full(len(found["id"]), os.getpid())}


def rows(count: int, spoiled: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """Images, of which some lack columns of pixels."""
    return [
        {"image": DIGITS.images[n, 0][:, :4] if n in spoiled else DIGITS.images[n, 0], "id": n}
        for n in range(count)
    ]


def mapped(kind: type, items: list[dict[str, Any]], blocks: int, *args: Any, **options: Any) -> Any:
    engine: dict[str, Any] = {
        name: options.pop(name) for name in ("num_gpus", "batch_size", "size") if name in options
    }
    strategy = ray.data.ActorPoolStrategy(
        size=engine.pop("size", 1), max_tasks_in_flight_per_actor=1
    )
    return ray.data.from_items(items, override_num_blocks=blocks).map_batches(
        kind, fn_constructor_args=(DIGITS.model, *args), fn_constructor_kwargs=options,
        compute=strategy, **engine,
    )  # fmt: skip


def main() -> None:
    """All of it in one Ray, which takes seconds to start."""
    out, folder, backend, *uuids = sys.argv[1:]
    with Model(DIGITS.model, backend=backend, device=f"uuid:{uuids[0]}") as model:
        wanted = model(DIGITS.images[:COUNT, 0])[0]
        made = model.output_names[0]
    ray.init(
        num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False,
        object_store_memory=100 << 20,
    )  # fmt: skip
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.wait_for_min_actors_s = 120  # both actors are there before the first block is
    here = {"backend": backend, "batch": 8}
    gpus = [f"uuid:{uuid}" for uuid in uuids]

    def gap(found: list[dict[str, Any]]) -> float:
        found = sorted(found, key=lambda row: row["id"])
        return float(np.abs(np.array([row[made] for row in found]) - wanted[: len(found)]).max())

    halves = mapped(
        OnDevice, rows(COUNT), 2, gpus=gpus, num_gpus=1, size=2, batch_size=16, **here
    ).take_all()
    spoiled = mapped(
        Predictor, rows(COUNT, (5, 41)), 3, errors="why", batch_size=16, device=gpus[1], **here
    ).take_all()
    refused = ""
    try:
        mapped(Predictor, rows(20, (5,)), 1, batch_size=16, device=gpus[0], **here).take_all()
    except Exception as error:  # noqa: BLE001  (Ray's own, made of the actor's)
        refused = str(error)
    unassigned = ""
    try:
        mapped(Predictor, rows(20), 1, num_gpus=1, batch_size=16, **here).take_all()
    except Exception as error:  # noqa: BLE001
        unassigned = str(error)
    mark = Path(folder) / "killed"
    killed = mapped(
        KilledOnce, rows(COUNT), 7, str(mark), device=gpus[0], batch_size=10, **here
    ).take_all()
    good = [row for row in spoiled if not row["why"]]
    result = {
        "halves": {"devices": Counter(row["device"] for row in halves), "gap": gap(halves),
                   "ids": sorted(row["id"] for row in halves)},
        "spoiled": {"why": {row["id"]: row["why"] for row in spoiled if row["why"]},
                    "blank": all(np.isnan(row[made]).all() for row in spoiled if row["why"]),
                    "ids": sorted(row["id"] for row in spoiled),
                    "gap": max(float(np.abs(row[made] - wanted[row["id"]]).max()) for row in good)},
        "refused": refused,
        "unassigned": unassigned,
        "killed": {"ids": sorted(row["id"] for row in killed), "gap": gap(killed),
                   "was_killed": mark.exists() and int(mark.read_text())
                   not in {row["pid"] for row in killed if row["id"] == 30}},
    }  # fmt: skip
    ray.shutdown()
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
