"""The producing half: selectors, writers, subpartitions, and which channel sends next."""
