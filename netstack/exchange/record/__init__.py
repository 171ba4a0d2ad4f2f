"""Records as bytes and back: formats, framing over any number of buffers, one by one and by array."""
