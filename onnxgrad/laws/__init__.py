"""The laws of rewriting, each once, by subject; passes and the gradient's simplification choose
among them.
"""
