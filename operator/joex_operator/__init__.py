"""The Kubernetes operator for Joex executor pools.

This package is reserved for the operator, which its own milestone fills; it imports only the public faces of
``joex``, and ``joex`` never imports it.
"""
