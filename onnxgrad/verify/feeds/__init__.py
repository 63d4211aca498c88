"""Inputs for a proof: generated values that the model accepts, and the user's own."""
