"""The worlds in which laws are tested."""
