"""Decides which constants of a model are weights, and repairs parameters that exporters changed."""
