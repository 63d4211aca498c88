"""The contents and costs of models, the roles of their constants, and the differences between two
models.
"""
