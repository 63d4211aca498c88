"""Checks of a model: before anything is built from it, and in full once work on it has failed."""
