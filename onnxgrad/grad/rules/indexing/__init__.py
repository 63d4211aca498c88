"""Operators that read or write elements at given places."""
