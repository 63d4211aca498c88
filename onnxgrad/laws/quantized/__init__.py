"""Laws that rewrite quantized operators: the operators, the forms of the result, and their
exactness.
"""
