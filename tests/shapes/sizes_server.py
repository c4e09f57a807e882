"""What the server of `sizes_child` imports: all that a child needs to run a model on NumPy's
device, since it has run one itself. It starts no threads."""

from __future__ import annotations

from tests.shapes.sizes_child import run
from tests.small_models import small_model

run(small_model({"x": (4,), "y": (4,)}, "y = ABS(x)"), "cpu_ref")
