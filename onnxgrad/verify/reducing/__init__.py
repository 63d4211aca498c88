"""Finds the smallest model that still has some property."""
