"""Inputs for a model: generated ones that make sense, and the user's own."""
