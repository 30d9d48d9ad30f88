"""Sphinx configuration of the documentation site: ``make docs``."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path

from jupyter_client.manager import KernelManager

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent)]

project = "Vouch"
author = "The authors of Vouch"
release = version = version_of("vouch-search")

extensions = [
    "myst_nb",
    "sphinx_design",
    "sphinx.ext.autodoc",
    "numpydoc",
    "generated_reference",
]
exclude_patterns = ["demo", "decisions"]
nitpicky = False
default_role = "py:obj"

# With this PATH, notebooks find the commands of this environment. Without encryption, kernels warn.
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
KernelManager.transport_encryption.default_value = "required"
# Notebooks run at every build of the site, so that they show the results of the current code.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # maximum seconds for a cell, even on a busy machine
nb_output_stderr = "remove"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # NumPy types are long, and the docstrings state the types
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_theme = "pydata_sphinx_theme"
html_title = "Vouch"
html_static_path = ["_static"]
html_css_files = ["vouch.css"]
html_copy_source = html_show_sourcelink = False
templates_path = ["_templates"]
html_sidebars = {"index": [], "**": ["contents.html"]}
html_theme_options = {
    "navbar_center": ["parts.html"],
    "navbar_persistent": ["search-button"],
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": {"index": [], "**": ["page-toc"]},
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
    "show_toc_level": 2,
}
copyright = "The authors of Vouch, Apache-2.0"  # noqa: A001 - Sphinx's name
