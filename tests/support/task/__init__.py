"""Tasks under test, and the functions that they run."""
