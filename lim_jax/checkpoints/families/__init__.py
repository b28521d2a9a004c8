"""Ways to say which parts of a context an answer comes from: a file each, and their table."""
