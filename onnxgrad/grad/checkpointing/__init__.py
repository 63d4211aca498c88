"""Checkpointing: what the backward part computes again instead of keeping it."""
