"""`python -m crpipe` is `crpipe`: what torchrun starts."""

from crpipe.cli.campaign import main

main()
