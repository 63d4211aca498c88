"""At the edges: the kinds of models that users hold in their hands."""
