"""Tables of keys and values: made, filled once, looked up, counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import ModelError, StateError
from tflgpu.flow.steps import Env, Told
from tflgpu.flow.store import Handle, VariableStore
from tflgpu.ir.dtypes import Array, DType

#: What LiteRT has tables of: keys and values.
_TYPES = ((DType.I64, DType.STRING), (DType.STRING, DType.I64))


@attrs.frozen(eq=False)
class MakeTable:
    """HASHTABLE."""

    output: int
    handle: Handle
    store: VariableStore
    types: tuple[DType, DType]
    results: tuple[Told, ...]

    @classmethod
    def of(
        cls,
        where: str,
        output: int,
        handle: Handle,
        fields: Mapping[str, Any],
        store: VariableStore,
    ) -> MakeTable:
        """By the operator's options.

        Raises:
            ModelError: such a table there is not.
        """
        codes = [int(fields[name]) for name in ("key_dtype", "value_dtype")]
        for types in _TYPES:
            if codes == [t.tflite for t in types]:
                return cls(output, handle, store, types, (handle,))
        raise ModelError(
            f"{where}: a table of types {codes[0]} and {codes[1]}; keys and values are i64 (4) and "
            "texts (5), or the other way round"
        )

    def __call__(self, env: Env) -> None:
        """Name the table; there is one by that name from now on."""
        self.store.make_table(self.handle, *self.types)
        env[self.output] = self.handle


@attrs.frozen(eq=False)
class Fill:
    """HASHTABLE_IMPORT."""

    keys: int
    values: int
    handle: Handle
    store: VariableStore
    types: tuple[DType, DType]
    results: tuple[Told, ...] = ()

    def __call__(self, env: Env) -> None:
        """Fill the table, where that has not been done."""
        self.store.fill(self.handle, env[self.keys], env[self.values], self.types)


@attrs.frozen(eq=False)
class Find:
    """HASHTABLE_FIND."""

    where: str
    keys: int
    default: int
    output: int
    handle: Handle
    store: VariableStore
    types: tuple[DType, DType]
    results: tuple[Told, ...]

    def __call__(self, env: Env) -> None:
        """Look every key up; the default's first element where there is none."""
        table = self.store.table(self.handle, *self.types)
        if table.found is None:
            raise StateError(
                f"{self.where}: {self.handle} is looked up before HASHTABLE_IMPORT filled it"
            )
        keys: Array = env[self.keys]
        default = env[self.default].reshape(-1).tolist()[0]
        made = self.types[1].blank((keys.size,))
        for at, key in enumerate(keys.reshape(-1).tolist()):
            made[at] = table.found.get(key, default)
        env[self.output] = made.reshape(keys.shape)


@attrs.frozen(eq=False)
class Size:
    """HASHTABLE_SIZE."""

    output: int
    handle: Handle
    store: VariableStore
    results: tuple[Told, ...] = ((1,),)

    def __call__(self, env: Env) -> None:
        """Count the keys."""
        env[self.output] = np.array([self.store.table_size(self.handle)], np.int64)
