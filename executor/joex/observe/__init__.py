"""What is seen of an executor from outside: its events become log lines and numbers for Prometheus."""
