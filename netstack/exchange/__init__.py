"""A record's whole way between two tasks, without I/O: `outbound`, `wire`, `inbound`."""
