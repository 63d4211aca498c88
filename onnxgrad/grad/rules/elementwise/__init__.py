"""Operators that take each element by itself."""
