"""Who gets which slot: sharing, balance, places near the data."""
