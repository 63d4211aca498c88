"""Passes in an order that is a preset's, and the proof of what they made."""
