"""Networks, peers and pumps for tests."""
