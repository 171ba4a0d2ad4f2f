"""Byte streams for netstack, one module for each URL scheme; found by `netstack.base.transport`."""
