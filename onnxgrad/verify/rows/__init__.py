"""Proof that a model computes row by row as another does: `grouping.py` stacks runs and takes them
apart, `proof.py` compares.
"""
