"""A scheduler that is played by hand."""
