"""What a model is asked before anything is built from it."""
