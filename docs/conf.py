"""Sphinx settings of `make site`; publish.py lays out the sources that it reads."""

project = "What training a language model costs, and GPT-2 reproduced"
html_title = "GPT-2, from bits to the full run"
author = "the authors of the course"

extensions = ["myst_nb", "sphinx.ext.mathjax", "sphinx-mathjax-offline"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["course.css"]
html_copy_source = False
html_show_copyright = False

nb_execution_mode = "off"  # what the notebooks have stored is what readers see
nb_merge_streams = True
myst_enable_extensions = ["dollarmath"]
myst_dmath_allow_digits = False  # "$21 to $28" are prices
myst_heading_anchors = 3
