"""Proves that one model computes for every row what another computes: `grouping.py` stacks and
splits runs, `proof.py` compares them.
"""
