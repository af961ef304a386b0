"""Sphinx configuration. Built with warnings as errors by `make docs`."""

from __future__ import annotations

from hmc import __version__

project = "HMC"
author = "the HMC authors"
copyright = "2026, the HMC authors"
release = __version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"HMC {release}"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
