"""The protocol without a socket: frames, codecs, credit, and one multiplexed connection (`SPEC.md` is normative)."""
