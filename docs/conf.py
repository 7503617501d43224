"""How Sphinx builds this site: `make docs`. Pages that would repeat the code are written from it by `_ext`."""

from __future__ import annotations

import sys
from pathlib import Path

import unisono

sys.path.insert(0, str(Path(__file__).parent))

project = "unisono"
author = "the authors of unisono"
release = unisono.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "_ext.pages"]
exclude_patterns = ["_*", "README.md"]

html_theme = "furo"
html_title = f"unisono {release}"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
pygments_style = "friendly"

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

nb_render_markdown_format = "gfm"  # tables
nb_execution_mode = "off"  # their files have the outputs; tests/docs makes these again

default_role = "code"
napoleon_use_ivar = True
suppress_warnings = ["ref.python"]  # names of attributes look for a page, and some find several
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
