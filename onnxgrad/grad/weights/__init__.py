"""Which constants of a model are weights, and why."""
