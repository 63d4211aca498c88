"""Random models for the sweeps, and the reduction of failures."""
