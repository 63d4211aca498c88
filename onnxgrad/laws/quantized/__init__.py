"""Quantized operators by means of others: the operators, the forms they may take, and how exact
they are.
"""
