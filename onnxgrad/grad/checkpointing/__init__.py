"""Checkpointing: the backward part computes values again instead of keeping them."""
