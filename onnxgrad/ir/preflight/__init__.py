"""Checks of a model before a program is built from it, and the full check after work on it has
failed.
"""
