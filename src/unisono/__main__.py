"""`python -m unisono` is the command `unisono`."""

from .cli import main

if __name__ == "__main__":
    main()
