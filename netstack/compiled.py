"""Where the compiled data path lies, and whether it is that of the sources beside it.

Takes: the folder of the package. Gives: the manifest of machine code that may be loaded. The standard library is all it
needs: `tools/compile_core.py` loads this file by its path, where netstack is not installed yet.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from pathlib import Path
from typing import Any, Final

MANIFEST: Final = "manifest.json"
"""Lies beside the machine code: `group`, the module all others need; `files` by module; `sources`, a digest of each."""

NOT_COMPILED: Final = "the data path was not compiled for this Python; with a C compiler, install netstack again"


def compiled_folder(package: Path) -> Path:
    """Where the machine code for this interpreter lies; of others there may be some beside it."""
    return package / "_compiled" / str(sysconfig.get_config_var("SOABI"))


def source_digest(source: bytes) -> str:
    """What a source is recognised by."""
    return hashlib.blake2b(source, digest_size=16).hexdigest()


def current_manifest(package: Path) -> tuple[dict[str, Any] | None, str]:
    """The manifest of the machine code there, if it was made from the sources there; else None, and why."""
    folder = compiled_folder(package)
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
        for name in manifest["files"].values():
            if not (folder / name).is_file():
                return None, f"{name} is missing in {folder}; compile the data path again"
        for name, digest in manifest["sources"].items():
            if source_digest((package / name).read_bytes()) != digest:
                return None, f"netstack/{name} was edited since the data path was compiled; compile it again"
    except (OSError, ValueError, KeyError):
        return None, NOT_COMPILED
    return manifest, ""
