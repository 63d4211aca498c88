"""A report as one HTML file: the data of the result, and the page around the data (`page`), with
the scripts of `assets/` and the libraries of `vendor/` for layout, zoom and plots.
"""
