"""``python -m joex``: the same as the command ``joex``."""

from joex.cli import main

if __name__ == "__main__":
    main()
