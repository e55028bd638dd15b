"""The command line: `main` has the commands, the other modules what they do and show: tables, or one JSON document."""
