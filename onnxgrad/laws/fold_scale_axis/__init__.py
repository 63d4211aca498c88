"""How a scale per channel moves through operators into the weights of products."""
