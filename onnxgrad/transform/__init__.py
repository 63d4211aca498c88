"""Transformations of a whole program: open batches and sizes, vmap, per-sample, and split."""
