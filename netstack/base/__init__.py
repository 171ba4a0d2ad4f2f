"""What everyone may use: errors, settings, ids, events, units, and the interface of transports."""
