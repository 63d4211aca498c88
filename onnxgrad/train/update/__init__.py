"""The update of a training step: its options, its formulas in a graph, and what goes before and
behind the optimiser.
"""
