"""Configuration of the site: `python -m sphinx -b html docs docs/_build`.

Pages that come from the code are written by `generate` before Sphinx reads anything.
"""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import generate  # noqa: E402  (beside this file)

project = "tflgpu"
release = version = version_of("tflgpu")
html_title = f"tflgpu {version}"
html_theme = "furo"
html_show_copyright = False
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "jupyter_execute"]
html_static_path = ["generated/static"]
# Headings are targets of links, as they are where the pages are read in the repository.
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
autodoc_typehints = "none"
autodoc_member_order = "bysource"
add_module_names = False
default_role = "code"


def setup(app: Any) -> None:
    """Write the pages, and have links out of this folder lead to them."""
    generate.write(HERE / "generated")
    app.connect("source-read", generate.redirect)
    app.connect("autodoc-process-docstring", generate.mark_code, priority=400)
    app.connect("build-finished", generate.write_llms)
