"""Helpers for tests of netstack and of programs that use it, shipped as `trio.testing` is."""
