"""How Sphinx makes the site: `make site`."""

project = "Framework Determinism"
author = "The authors of Framework Determinism"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"page_width": "1200px", "description": "Bit-exact deep learning", "fixed_sidebar": True}
html_show_sourcelink = False
html_show_copyright = False
# Links such as messages.md#op-unknown lead to headings.
myst_heading_anchors = 3
# Texts of versions and options stay as they are written.
smartquotes = False
nitpicky = True
# A page may list its headings one level below its title, as kinds.md does.
suppress_warnings = ["myst.header"]
