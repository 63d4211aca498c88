"""`optimize` as a pass of Olive workflows. Its modules need Olive, and have the names
`onnxgrad.olive.optimize` and `onnxgrad.olive.package_config` for the configurations of users.
"""
