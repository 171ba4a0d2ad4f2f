"""What `netstack.aio` shows: the same data path for asyncio programs."""
