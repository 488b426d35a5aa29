"""Turns an executor's events into log lines, and into metrics for Prometheus."""
