"""`CompiledModel`: a model that runs on `TensorBuffer`, by the names of LiteRT 2's.

CompiledModel -> BoundRuns, one for each signature -> sessions of the interpreter
                      ^
TensorBuffer ---------+  TensorMemory
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from tflgpu.compiled_model.async_run import AsyncRun
from tflgpu.compiled_model.environment import Environment, interpreter_arguments
from tflgpu.compiled_model.facts import ModelFacts, in_order, unknown
from tflgpu.compiled_model.options import HardwareAccelerator, Options, accelerators
from tflgpu.compiled_model.tensor_buffer import TensorBuffer
from tflgpu.errors import ArgumentError, InputError, OptionError, UnsupportedError
from tflgpu.errors.blame import listed, shown
from tflgpu.interpreter import Interpreter
from tflgpu.interpreter.bound_runs import BoundRuns
from tflgpu.ir.dtypes import DType
from tflgpu.options import truth


class CompiledModel(ModelFacts):
    """A `.tflite` model, compiled, with the methods and arguments of LiteRT 2's.

        model = CompiledModel.from_file("model.tflite")
        inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
        inputs[0].write(image)
        model.run_by_index(0, inputs, outputs)
        scores = outputs[0].read(1000, np.float32)

    Where no accelerator is named it runs on the best GPU there is, and the CPU runs the rest (in
    LiteRT: on the CPU). A signature is compiled when it is first used, the first one at once. One
    thread at a time may use a model. Beyond LiteRT's: `run_async`, and `report`.
    """

    def __init__(self, interpreter: Interpreter, environment: Environment) -> None:
        """Over an interpreter of the model's own; `from_file` and `from_buffer` make it."""
        super().__init__(interpreter)
        self._environment = environment
        self._flight: AsyncRun | None = None
        #: The signature and memory that a run was asked for, and what was made of it.
        self._found: tuple[list[Any], tuple[BoundRuns, Any, Any]] | None = None

    @classmethod
    def from_file(
        cls,
        model_path: str,
        hardware_accel: HardwareAccelerator | None = None,
        environment: Environment | None = None,
        options: Options | None = None,
    ) -> CompiledModel:
        """Compile the model in a file.

        Args:
            model_path: Path of a `.tflite` file; it is mapped, and must not be changed in use.
            hardware_accel: What it may run on; None, without options, is the best GPU there is,
                with the CPU.
            environment: Whose devices it uses; None is one of its own.
            options: Or everything at once.

        Raises:
            ModelError: no such file, or not a well-formed model.
            OptionError: options and accelerators, or an option that is refused.
            UnsupportedError: the NPU alone; or an operator that the accelerators cannot run.
            DeviceError: there is no GPU, and nothing else was named.
        """
        return cls._made({"model_path": model_path}, hardware_accel, environment, options)

    @classmethod
    def from_buffer(
        cls,
        model_data: bytes,
        hardware_accel: HardwareAccelerator | None = None,
        environment: Environment | None = None,
        options: Options | None = None,
    ) -> CompiledModel:
        """Compile a model that is there as bytes; otherwise as `from_file`.

        Raises:
            As `from_file`.
        """
        return cls._made({"model_content": model_data}, hardware_accel, environment, options)

    @classmethod
    def _made(
        cls,
        source: dict[str, Any],
        hardware_accel: HardwareAccelerator | None,
        environment: Environment | None,
        options: Options | None,
    ) -> CompiledModel:
        if options is not None and hardware_accel is not None:
            raise OptionError("Pass either options or hardware_accel, not both")
        if options is not None and not isinstance(options, Options):
            raise OptionError(f"options are tflgpu.compiled_model.Options, not {shown(options)}")
        if environment is None:
            environment = Environment.create()
        elif not isinstance(environment, Environment):
            raise OptionError(
                f"environment is a tflgpu.compiled_model.Environment, not {shown(environment)}"
            )
        where = HardwareAccelerator.GPU | HardwareAccelerator.CPU
        if options is not None:
            where = accelerators(options.hardware_accelerators)
        elif hardware_accel is not None:
            where = accelerators(hardware_accel)
        arguments = interpreter_arguments(where, environment, options or Options())
        made = cls(Interpreter(**source, **arguments), environment)
        made._is_on_gpu = bool(where & HardwareAccelerator.GPU)
        try:
            made._runs_of(0).ready()
        except BaseException:
            made.close()
            raise
        return made

    def close(self) -> None:
        """Release the model; twice is harmless. Its buffers stay readable, as long as their device
        is open."""
        if not self._guard.closed:
            with self._guard:
                self._settle()
        self._interpreter.close()

    def __enter__(self) -> CompiledModel:
        with self._guard:
            return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    @property
    def environment(self) -> Environment:
        """The environment that it was compiled in."""
        return self._environment

    # Buffers

    def create_input_buffer_by_name(self, signature_key: str, input_name: str) -> TensorBuffer:
        """A buffer of zeros for an input: on the device where the signature has an output of the
        same name, shape and type, which the next run reads; otherwise in host memory.

        Raises:
            InputError: there is no such signature or input.
            UnsupportedError: its shape is only known at run time, or it has texts.
            DeviceError: memory ran out.
            StateError: closed or in use.
        """
        with self._guard:
            return self._buffer(self._index(signature_key), input_name, is_input=True)

    def create_output_buffer_by_name(self, signature_key: str, output_name: str) -> TensorBuffer:
        """As `create_input_buffer_by_name`, for an output.

        Raises:
            As there.
        """
        with self._guard:
            return self._buffer(self._index(signature_key), output_name, is_input=False)

    def create_input_buffers(self, signature_index: int) -> list[TensorBuffer]:
        """A buffer for each input, as `create_input_buffer_by_name`.

        Raises:
            As there.
        """
        with self._guard:
            signature = self._signature(signature_index)
            return [self._buffer(signature_index, n, is_input=True) for n in signature.inputs]

    def create_output_buffers(self, signature_index: int) -> list[TensorBuffer]:
        """A buffer for each output, as `create_input_buffer_by_name`.

        Raises:
            As there.
        """
        with self._guard:
            signature = self._signature(signature_index)
            return [self._buffer(signature_index, n, is_input=False) for n in signature.outputs]

    def resize_input_tensor(
        self,
        input_index: int,
        dims: Sequence[int],
        signature_index: int = 0,
        strict: bool = True,
    ) -> None:
        """Give an input another shape. Buffers of the signature have to be created anew.

        Args:
            input_index: Position in the signature.
            dims: The new shape.
            signature_index: Which signature.
            strict: Allow changes only of sizes that the file leaves open (-1).

        Raises:
            InputError: there is no such input or signature, or no sizes.
            ResizeError: a shape that cannot be, or that ``strict`` forbids.
            StateError: closed or in use.
        """
        with self._guard:
            self._settle()
            self._found = None
            _, index = self._tensor(signature_index, input_index, is_input=True)
            self._runs_of(signature_index).resize(index, dims, strict=truth("strict", strict))

    def resize_input_tensor_by_name(
        self, signature_key: str, input_name: str, dims: Sequence[int], strict: bool = True
    ) -> None:
        """As `resize_input_tensor`, by names.

        Raises:
            As there.
        """
        at = self._index(signature_key)
        names = [*self._signatures[at].inputs]
        if input_name not in names:
            raise unknown("input", input_name, names, signature_key)
        self.resize_input_tensor(names.index(input_name), dims, at, strict)

    # Running

    def run_by_name(
        self,
        signature_key: str,
        input_map: dict[str, TensorBuffer],
        output_map: dict[str, TensorBuffer],
    ) -> None:
        """Run a signature on buffers by name.

        Raises:
            InputError: a buffer is missing, has no tensor, or another type or size than its tensor.
            StateError: closed, in use, or a buffer was destroyed.
            DeviceError: the device failed.
        """
        index = self._index(signature_key)
        signature = self._signatures[index]
        sides = (
            in_order(signature.key, kind, given, names)
            for kind, given, names in (
                ("input", input_map, signature.inputs),
                ("output", output_map, signature.outputs),
            )
        )
        self.run_by_index(index, *sides)

    def run_by_index(
        self,
        signature_index: int,
        input_buffers: list[TensorBuffer],
        output_buffers: list[TensorBuffer],
    ) -> None:
        """Run a signature on a buffer for each input and output, in its order.

        Raises:
            As `run_by_name`.
        """
        with self._guard:
            runs, inputs, outputs = self._memories(signature_index, input_buffers, output_buffers)
            runs.run(inputs, outputs, {})

    def run_async(
        self,
        signature_index: int,
        input_buffers: list[TensorBuffer],
        output_buffers: list[TensorBuffer],
    ) -> AsyncRun:
        """Begin a run and return. Reading one of its buffers waits for its end, and so does the
        next run of the model. Where parts run on the CPU it is over when this returns.

        Raises:
            As `run_by_name`.
        """
        with self._guard:
            runs, inputs, outputs = self._memories(signature_index, input_buffers, output_buffers)
            run = AsyncRun(self._guard, *runs.submit(inputs, outputs))
            self._flight = run
            for buffer in (*input_buffers, *output_buffers):
                buffer.expect(run.wait)
            return run

    # Inside

    def _settle(self) -> None:
        """End the run that is under way; its error is for who waits for it."""
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.finish()

    def _buffer(self, signature_index: int, name: str, *, is_input: bool) -> TensorBuffer:
        signature, runs = self._signature(signature_index), self._runs_of(signature_index)
        side = signature.side(is_input=is_input)
        if name not in side:
            kind = "input" if is_input else "output"
            raise unknown(kind, name, [*side], signature.key)
        index = side[name]
        tensor, session = runs.subgraph.info.tensors[index], runs.ready().session
        assert session is not None
        if tensor.dtype in (DType.STRING, DType.RESOURCE, DType.VARIANT):
            raise UnsupportedError(
                f"{name}: a TensorBuffer has no {tensor.dtype.name.lower()}; use tflgpu.Interpreter"
            )
        other = signature.side(is_input=not is_input).get(name, -1)
        ends = [session.arrays[i] for i in (index, other) if i in session.arrays]
        is_handed_on = len(ends) == 2 and len({(end.shape, end.dtype) for end in ends}) == 1
        memory = runs.memory(index, on_device=is_handed_on, name=name)
        return TensorBuffer(memory, self._environment)

    def _memories(
        self, signature_index: int, inputs: Sequence[TensorBuffer], outputs: Sequence[TensorBuffer]
    ) -> tuple[BoundRuns, dict[int, Any], dict[int, Any]]:
        """What runs a signature, and the memory of buffers, by tensor, when the run before is
        over."""
        self._settle()
        signature = self._signature(signature_index)
        try:
            given = [b.capsule for b in (*inputs, *outputs) if isinstance(b, TensorBuffer)]
        except TypeError as error:
            named = f"{type(inputs).__name__} and {type(outputs).__name__}"
            raise ArgumentError(
                f"buffers are a list for inputs and one for outputs, not {named}"
            ) from error
        asked = [signature_index, len(inputs), len(outputs), *given, *[m.shape for m in given]]
        if self._found is not None and asked == self._found[0]:
            return self._found[1]
        runs = self._runs_of(signature_index)
        subgraph = runs.ready()
        found: list[dict[int, Any]] = []
        for kind, buffers, tensors in (
            ("input", inputs, signature.inputs),
            ("output", outputs, signature.outputs),
        ):
            if len(buffers) != len(tensors):
                raise InputError(
                    f"{len(buffers)} {kind} buffers for the {len(tensors)} {kind}s of signature "
                    f"{signature.key!r}: {listed([*tensors])}"
                )
            side: dict[int, Any] = {}
            for (name, index), buffer in zip(tensors.items(), buffers, strict=True):
                if not isinstance(buffer, TensorBuffer):
                    raise ArgumentError(f"{kind} {name!r} is a TensorBuffer, not {shown(buffer)}")
                side[index] = buffer.capsule
                _check_fit(subgraph, f"{kind} {name!r}", index, side[index])
            found.append(side)
        self._found = asked, (runs, found[0], found[1])
        return self._found[1]


def _check_fit(subgraph: Any, told: str, index: int, memory: Any) -> None:
    """That a buffer is for a tensor. An array of the caller's may have another shape."""
    session = subgraph.session
    if index not in session.arrays:
        return
    own = session.arrays[index]
    if memory.dtype != own.dtype or memory.nbytes != own.nbytes:
        raise InputError(
            f"{told} is {own.dtype}{listed(own.shape)}, and the buffer "
            f"{memory.dtype}{listed(memory.shape)}; create it by the model's "
            "create_input_buffers or create_output_buffers, anew after a resize"
        )
    if memory.shape != own.shape:
        memory.shape = own.shape
        if memory.array is not None:
            memory.array = memory.array.reshape(own.shape)
