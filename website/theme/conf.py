"""Settings of Sphinx. Nothing in the site asks anything of another host."""

project = "kinfed"
extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = [
    "misc.highlighting_failure",
    "ref.python",
]  # code with … for what is left out; types that two modules have
highlight_language = "text"
add_module_names = False
toc_object_entries = False
copybutton_prompt_text = "$ "
html_theme = "furo"
html_title = "kinfed"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # they are fetched, which a page from the disk may not
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#00796b", "color-brand-content": "#00695c"},
    "dark_css_variables": {"color-brand-primary": "#4db6ac", "color-brand-content": "#80cbc4"},
}
