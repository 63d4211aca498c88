"""Normalizations, and Softmax."""
