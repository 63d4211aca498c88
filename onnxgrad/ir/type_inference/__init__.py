"""Who gives values their types: at load, at emission, and again once operands are better known."""
