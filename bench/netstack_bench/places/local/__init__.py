"""A measurement in two processes of this machine. Begin with `runner`."""
