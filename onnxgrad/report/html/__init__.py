"""A report as one page that is a file: data from what was done, and the page around it (`page`),
with the scripts of `assets/` and the libraries of `vendor/` for layout, zoom and plots.
"""
