"""Numeric proof of a gradient graph by central differences in float64."""
