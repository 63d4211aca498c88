"""Types of values: at load, at emission, and again once operands are better known."""
