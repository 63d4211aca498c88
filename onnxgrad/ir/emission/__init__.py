"""Emission: bindings that are appended to the block that `emitting` names, and typed on the
spot.
"""
