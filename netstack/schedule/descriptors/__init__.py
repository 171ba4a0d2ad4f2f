"""Task deployment descriptors, and how their large parts are shared."""
