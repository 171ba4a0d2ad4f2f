"""The attribute by which the page's script knows what belongs to which choice of settings.

Takes: choices as `Filters` writes them. Gives: text for a tag.
"""

from __future__ import annotations


def facets_attribute(facets: str) -> str:
    """` data-f="0-1 1-0"`; nothing for what is always shown."""
    return f' data-f="{facets}"' if facets else ""
