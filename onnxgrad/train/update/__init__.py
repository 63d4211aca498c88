"""The update of a training step: its options, its formulas in a graph, and the work before and
after the optimiser.
"""
