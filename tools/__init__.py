"""Tools of the maintainers: the site, slides, stored outputs, and the plugin for nbval."""
