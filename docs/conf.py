"""Sphinx: ``make docs``."""

import sys
from pathlib import Path

from sphinx.errors import ExtensionError

import lossary

sys.path.insert(0, str(Path(__file__).parent))

project = "lossary"
version = release = lossary.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "mathml"]
html_theme = "furo"
html_title = "lossary"
html_static_path = ["_static"]
html_css_files = ["lossary.css"]
html_math_renderer = "mathml"
html_show_copyright = False
smartquotes_action = "qe"  # not dashes: `--option` stands in what frameworks call things
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "description"
exclude_patterns = ["_build", "zoo/_*"]


def _generate(app):
    from generate import generate, without_page

    zoo = Path(app.srcdir) / "zoo"
    generate(zoo)
    if missing := without_page(zoo, (c for c in lossary.catalog() if c.distribution == "lossary")):
        raise ExtensionError(f"no page for {', '.join(missing)}")


def setup(app):
    app.connect("builder-inited", _generate)
