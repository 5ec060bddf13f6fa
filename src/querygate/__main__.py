"""`python -m querygate`."""

from querygate.cli.main import main

main()
