"""Is an emulated line like a real one? The same cells over a shaped line between hosts, and emulated on one machine."""
