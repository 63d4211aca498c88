"""Custom operators that cannot run here, as boundaries of a proof."""
