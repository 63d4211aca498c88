"""Emission: appends bindings to the block that `emitting` names, and types them at once."""
