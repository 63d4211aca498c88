"""The step before deployment: which models, what is known of them, what changed since the lock."""
