"""Computations of float32 in float16: which of them, and how they are written there."""
