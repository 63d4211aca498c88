"""The smallest model that still shows something."""
