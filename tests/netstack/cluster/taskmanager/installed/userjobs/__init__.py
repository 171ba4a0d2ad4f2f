"""A user's package, deployed by tests."""
