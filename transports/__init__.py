"""Byte streams for netstack, one module for each URL scheme; each is found through the entry points of the wheel."""
