"""Moves a scale per channel through operators into the weights of products."""
