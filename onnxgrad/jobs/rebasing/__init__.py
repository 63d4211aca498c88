"""New weights in an optimised model, without optimising again: the record that `optimize` keeps,
the weights of a new export, and the computation of the optimised constants from them.
"""
