"""The drawings of a page of the benchmark, to be looked at."""

from __future__ import annotations

import re
from xml.etree import ElementTree


def drawings(page: str) -> list[ElementTree.Element]:
    """Its charts."""
    return [
        ElementTree.fromstring(text) for text in re.findall(r'<svg viewBox="0 0 \d{3,4} .*?</svg>', page, re.DOTALL)
    ]


def by_class(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """What has this class, at any depth."""
    return [each for each in root.iter() if name in each.get("class", "").split()]
