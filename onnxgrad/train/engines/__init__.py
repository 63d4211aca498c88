"""Engines that run training steps: the step's graph unchanged, its gradient with the update in
NumPy, or several processes.
"""
