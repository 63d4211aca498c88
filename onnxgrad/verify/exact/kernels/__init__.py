"""Kernels of exact evaluation, in files by family; `registry` holds them by operator."""
