"""How Sphinx builds these pages: `sphinx-build -W docs docs/_build`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from hf_robustcse import __version__  # noqa: E402

project = "hf_robustcse"
copyright = "the authors of hf_robustcse, Apache-2.0"
release = version = __version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser"]
exclude_patterns = ["_build"]
default_role = "code"
# Annotations name a class as its module does (`Options`), which Sphinx finds in several modules.
suppress_warnings = ["ref.python"]

html_theme = "furo"
html_title = f"hf_robustcse {release}"

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def _link_to_the_repository(app: Any, docname: str, source: list[str]) -> None:
    """Files beside docs/ become downloads; the same relative link works where the Markdown is read as it is."""
    folder = (DOCS / docname).parent

    def link(match: re.Match[str]) -> str:
        target = (folder / match[1]).resolve()
        outside = target.is_file() and not target.is_relative_to(DOCS)
        return f"](path:{match[1]})" if outside else match[0]

    source[0] = re.sub(r"\]\((\.\./[^)#\s]+)\)", link, source[0])


def setup(app: Any) -> None:
    """Connect the above."""
    app.connect("source-read", _link_to_the_repository)
