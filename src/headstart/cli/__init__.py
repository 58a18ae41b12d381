"""The `headstart` command: one module per subcommand."""
