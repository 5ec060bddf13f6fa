"""`python -m tuplegate`."""

from tuplegate.cli.entry import main

main()
