"""How tasks and threads wait: parking, spinning, and the lock of the event loop."""
