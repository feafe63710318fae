"""Sphinx: ``make docs``."""

import lossary

project = "lossary"
version = release = lossary.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "lossary"
myst_enable_extensions = ["dollarmath"]
autodoc_typehints = "description"
exclude_patterns = ["_build"]
