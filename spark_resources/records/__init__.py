"""Small JSON records in a namespace, and their signatures."""
