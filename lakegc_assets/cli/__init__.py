"""The command line: `main` runs it, `commands` defines it, and the other modules print tables or one JSON document."""
