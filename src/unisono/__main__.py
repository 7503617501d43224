"""`python -m unisono` is the command `unisono`."""

from .tools.cli import main

if __name__ == "__main__":
    main()
