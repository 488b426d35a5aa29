"""Example apps, which the documentation and ``make demo`` use. Each is one module to read from top to bottom."""

from joex.examples import documents

__all__ = ["documents"]
