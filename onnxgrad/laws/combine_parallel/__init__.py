"""Families of branches that share an operand: many products become one, and its result is split."""
