"""Compares two models value by value; `pairs` finds corresponding values."""
