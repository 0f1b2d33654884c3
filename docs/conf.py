"""How Sphinx makes the site: `make site`."""

from pathlib import Path

project = "Framework Determinism"
author = "The authors of Framework Determinism"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Framework Determinism"
html_theme_options = {"navigation_with_keys": True}
html_search_scorer = str(Path(__file__).with_name("_static") / "search-scorer.js")
html_show_sourcelink = False
html_show_copyright = False
# Links such as messages.md#op-unknown lead to headings.
myst_heading_anchors = 3
# Texts of versions and options stay as they are written.
smartquotes = False
nitpicky = True
# A page may list its headings one level below its title, as kinds.md does.
suppress_warnings = ["myst.header"]
