"""Chains that exporters write for one function, each with the closed form of its derivative."""
