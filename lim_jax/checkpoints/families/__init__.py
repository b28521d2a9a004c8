"""The published families of models: a file for those alike, and the table of all."""
