"""Lets `python -m headstart` do what the `headstart` command does."""

from headstart.cli.main import main

main()
