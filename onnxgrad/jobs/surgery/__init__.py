"""Changes of the parts and the interface of a model, each with a proof: constants, new names and
outputs, one model from two, a part of one, steps before and after it, adapters, metadata.
"""
