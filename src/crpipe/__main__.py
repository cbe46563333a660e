"""`python -m crpipe` is `crpipe`: what torchrun starts."""

from crpipe.cli import main

main()
