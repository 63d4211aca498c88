"""Proves that a model computes row by row what another computes: `grouping.py` stacks and splits
runs, `proof.py` compares.
"""
