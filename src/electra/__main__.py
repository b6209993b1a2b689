"""`python -m electra` is the command `electra`."""

from electra.cli import main

main()
