"""Operators that lay elements out anew."""
