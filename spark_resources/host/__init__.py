"""The machine that lakegc runs on: folders and files of its user, and processes."""
