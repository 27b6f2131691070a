"""Sphinx settings."""

project = "areal-agent"
author = "The areal-agent maintainers"
copyright = "2026, the areal-agent maintainers"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "areal-agent"
exclude_patterns = ["_build", "generate_*.py"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
