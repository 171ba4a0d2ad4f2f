"""The HTML attribute that connects an element with the choices of the page's filters."""

from __future__ import annotations


def facets_attribute(facets: str) -> str:
    """Attribute such as ` data-f="0-1 1-0"`; empty for what is always shown."""
    return f' data-f="{facets}"' if facets else ""
