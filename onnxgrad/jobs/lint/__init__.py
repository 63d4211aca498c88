"""Lints: what is probably wrong with a model, found before its proof, and on the proof's runs."""
