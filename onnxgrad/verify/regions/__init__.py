"""Compares two models between their discontinuities, if comparing them as wholes proves nothing."""
