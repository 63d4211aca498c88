"""`optimize` as a pass of Olive workflows. Nothing else imports this folder, because it needs
Olive.
"""
