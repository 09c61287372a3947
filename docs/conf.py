"""Sphinx settings of `make site`; publish.py lays out the sources that it reads."""

import re

from docutils import nodes

from cs336_lib.report import palette

project = "What training a language model costs, and GPT-2 reproduced"
html_title = "GPT-2, from bits to the bill"
author = "the authors of the course"

extensions = ["myst_nb", "sphinx.ext.mathjax", "sphinx-mathjax-offline"]
html_theme = "furo"
html_static_path = ["_static"]
html_theme_options = {
    f"{theme}_css_variables": {"color-brand-primary": colour, "color-brand-content": colour}
    for theme, colour in (("light", palette.BLUE), ("dark", palette.SKY))
}
html_favicon = "_static/favicon.svg"
html_css_files = ["palette.css", "dark.css", "explorer.css", "course.css"]
html_js_files = ["explorers.js", "course.js", "predictions.js"]
templates_path = ["_templates"]
html_copy_source = False
html_scaled_image_link = False  # figures are stored with twice the pixels, which needs no link
html_show_copyright = False

nb_execution_mode = "off"  # what the notebooks have stored is what readers see
nb_merge_streams = True
myst_enable_extensions = ["dollarmath"]
myst_dmath_allow_digits = False  # "$21 to $28" are prices
myst_heading_anchors = 3
myst_html_meta = {  # what a search engine and a shared link show
    "description": "A tested notebook course: what training a language model costs, and GPT-2 "
    "reproduced with production code."
}


def put_names_first(_, document):
    """Link to an exercise by its name, because the number in its title can change."""
    for section in document.findall(nodes.section):
        section["ids"].sort(key=lambda found: bool(re.match(r"exercise-\d", found)))


def setup(app):
    """Add the files that publish.py has made, and the anchors of the exercises."""
    app.config.html_static_path.append(str(app.srcdir / "_static"))
    app.connect("doctree-read", put_names_first, priority=100)  # before the contents are collected
