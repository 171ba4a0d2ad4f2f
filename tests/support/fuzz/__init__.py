"""Inputs from outside for each function that reads them, and the search for one that breaks it."""
