"""`python -m pippin` is the command `pippin`."""

from .cli import main

main()
