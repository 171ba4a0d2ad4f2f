"""A driver that TaskManagers under test serve."""
