"""Example apps, which the documentation and ``joex demo`` use. Each is one module to read from top to bottom."""
