"""What the command line shows: tables for people, one JSON document for scripts."""
