"""Stages for tests of one part of the exchange."""
