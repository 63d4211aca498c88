"""What runs training steps: the portable graph as it is, or its gradient with the update beside
it.
"""
