"""A TaskManager's share of deployment: how offloaded blobs are fetched, kept and forgotten."""
