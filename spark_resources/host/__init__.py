"""The machine that lakegc runs on: its user's folders and files, and its processes."""
