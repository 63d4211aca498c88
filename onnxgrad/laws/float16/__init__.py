"""Converts float32 computations to float16: decides which ones, and rewrites them."""
