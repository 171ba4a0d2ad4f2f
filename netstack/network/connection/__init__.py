"""One connection: dialling, handshake, the pump that moves its bytes, sessions that resume it."""
