"""Certificates, and the folders that hold them."""
