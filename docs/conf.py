"""How Sphinx builds the site: ``make docs``."""  # noqa: INP001 - not a package

import sys
from pathlib import Path

from pygments.lexers.sql import PostgresLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "executor"), str(ROOT / "operator")]

project = "Joex"
html_title = project
html_theme = "furo"
html_copy_source = False
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "scripts.reference_pages"]
smartquotes = False
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!joex\.).*|joex\.\w+\..*")]  # other libraries, and what is not public

myst_heading_anchors = 4
myst_links_external_new_tab = True

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "inherited-members": "BaseException,object,str"}
napoleon_use_ivar = True


def setup(app: Sphinx) -> None:
    """Called by Sphinx. SQL here is PostgreSQL's, with dollar quotes."""
    app.add_lexer("sql", PostgresLexer)
