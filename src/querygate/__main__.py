"""`python -m querygate`."""

from querygate.cli.entry import main

main()
