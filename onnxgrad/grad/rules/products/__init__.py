"""Products of matrices, and what comes of them."""
