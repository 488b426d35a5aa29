"""``python -m examples.demo``."""

from joex.cli import run

if __name__ == "__main__":
    run("demo", "examples.demo:app")
