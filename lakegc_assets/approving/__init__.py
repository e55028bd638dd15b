"""A person's word: what it is given for, what speaks against it, which set it names byte for byte, how it is kept."""
