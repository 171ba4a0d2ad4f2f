"""Data structures without any job in them: growing arrays, disjoint sets, connected components."""
