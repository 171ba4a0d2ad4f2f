"""Scripts of `tools/`, which is no package, as modules.

Takes: the name of a script. Gives: its module, the same one each time.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.append(str(TOOLS))  # they import each other


@functools.cache
def load_tool(name: str) -> ModuleType:
    """The script `tools/{name}.py`, run as a module."""
    spec = importlib.util.spec_from_file_location(f"tool_{name}", TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
