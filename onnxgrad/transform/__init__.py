"""Transformations of a program: a batch axis that reaches every value (`open_batch`)."""
