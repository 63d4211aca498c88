"""Random models for the sweeps, and how a failure is made small and saved."""
