"""Engines that run training steps: the step's graph as it is, its gradient with the update in
NumPy, or several processes.
"""
