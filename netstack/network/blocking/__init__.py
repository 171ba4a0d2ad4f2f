"""What `netstack.blocking` shows: the same data path for programs without an event loop."""
