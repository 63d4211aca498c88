"""Combines branches that share an operand: many products become one, whose result is split."""
