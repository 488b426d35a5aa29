"""Measurements of Joex, for anyone to run: ``make bench``."""
