"""Addresses of the workers of a Spark session."""
