"""Speculative execution: further attempts of slow tasks, on other TaskManagers."""
