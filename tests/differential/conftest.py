"""The fuzzer is a package of its own, run from the repository's root."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).parents[2])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)
