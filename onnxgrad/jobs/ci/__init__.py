"""`onnxgrad ci`, the step before deployment: the models of a recipe, their facts, and changes since
the lock.
"""
