"""A node data provider: profiles the model that Model Explorer shows, and lays the times over its
graph. Its page offers it for `.tflite` files, with the settings of `get_config_editors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from model_explorer import (
    GetConfigEditorsResult,
    NodeDataProvider,
    NodeDataProviderFilter,
    NodeDataProviderMetadata,
    NodeDataProviderResult,
)
from model_explorer.config_editor import DropDownConfigEditor, OptionItem, TextInputConfigEditor
from model_explorer.node_data_builder import GradientItem, GraphNodeData, NodeDataResult

from tflgpu.errors import InputError, OptionError, TflgpuError
from tflgpu.interpreter import Interpreter
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.plugins.registry import registry
from tflgpu.runtime.profile import RunProfile
from tflgpu.tflite.read import read_model
from tflgpu.tools.profile_json import to_node_data
from tflgpu.tools.runs import random_input

_ID = "tflgpu_milliseconds"  # and what a run is called, unless the page is told otherwise
_BEST = "best"
_RUNS = 10


class TflgpuProfile(NodeDataProvider):  # type: ignore[misc]  # it has no type information
    """Milliseconds of each operator, on a device of this machine."""

    metadata = NodeDataProviderMetadata(
        id=_ID,
        name="tflgpu profile",
        description="Run the model with timers: milliseconds of each operator on a device",
        source_repo="https://pypi.org/project/tflgpu/",
        icon="timer",
        filter=NodeDataProviderFilter(modelFileExts=["tflite"]),
    )

    def get_config_editors(self, provider_id: str) -> GetConfigEditorsResult:
        """The settings that the page asks for: the backend, and how many runs there are."""
        known = registry()
        names = [_BEST, *(name for name in known.backends if known.probe(name).available)]
        options = [OptionItem(value=name, label=name) for name in names]
        backend = DropDownConfigEditor(
            id="backend", label="Backend", options=options, defaultValue=_BEST
        )
        runs = TextInputConfigEditor(id="runs", label="Runs", number=True, defaultValue=_RUNS)
        return GetConfigEditorsResult(configEditors=[backend, runs])

    def run(
        self,
        provider_id: str,
        model_path: str,
        graph_id: str,
        config_values: Mapping[str, Any],
        graph: Any = None,
    ) -> NodeDataProviderResult:
        """Profile the model on random inputs; what goes wrong is shown by the page."""
        try:
            (main, data), *_ = to_node_data(*_profiled(model_path, config_values)).items()
            if graph_id != main:
                raise InputError(f"the main graph, {main}, is what is profiled; open that")
            if not data["results"]:
                raise InputError("no operator of this model has a time of its own on this device")
        except TflgpuError as error:
            return NodeDataProviderResult(error=str(error))
        results = {key: NodeDataResult(**value) for key, value in data["results"].items()}
        gradient = [GradientItem(**item) for item in data["gradient"]]
        return NodeDataProviderResult(GraphNodeData(results=results, gradient=gradient))


def _profiled(path: str, values: Mapping[str, Any]) -> tuple[RunProfile, str]:
    """A profile, and the name of the graph."""
    name = str(values.get("backend") or _BEST)
    options = {} if name == _BEST else {"backend": name}
    try:
        runs = int(values.get("runs") or _RUNS)
    except (TypeError, ValueError):
        raise OptionError(f"Runs is a whole number, not {values['runs']!r}") from None
    rng = np.random.default_rng(0)
    with (
        GpuDelegate(**options) as delegate,  # type: ignore[arg-type]
        Interpreter(path, experimental_delegates=[delegate]) as interpreter,
    ):
        interpreter.allocate_tensors()
        for detail in interpreter.get_input_details():
            interpreter.set_tensor(detail["index"], random_input(dict(detail), rng))
        return interpreter.profile(runs), read_model(path).main.name
