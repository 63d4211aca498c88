"""Training without the framework: its options, the step, the training loop, and a whole run."""
