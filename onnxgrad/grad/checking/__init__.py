"""The numeric proof of a gradient graph, against central differences in float64."""
