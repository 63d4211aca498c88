"""Training without the framework: its declarations, the step, the loop over it, and a whole run."""
