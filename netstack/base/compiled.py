"""Locates the compiled data path and checks that it matches the sources.

Takes: the folder of the package. Gives: the manifest of the machine code, if it may be loaded. It needs only the
standard library, because `tools/compile_core.py` loads this file by path before netstack is installed.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from pathlib import Path
from typing import Any, Final

MANIFEST: Final = "manifest.json"
"""The manifest beside the machine code: `group`, the module all others need; `files`, the file of each module;
`sources`, a digest of each source.
"""

NOT_COMPILED: Final = "the data path was not compiled for this Python; with a C compiler, install netstack again"


def compiled_folder(package: Path) -> Path:
    """The folder with the machine code for this interpreter; other interpreters have folders of their own beside it."""
    return package / "_compiled" / str(sysconfig.get_config_var("SOABI"))


def source_digest(source: bytes) -> str:
    """The digest by which a source is recognised."""
    return hashlib.blake2b(source, digest_size=16).hexdigest()


def current_manifest(package: Path) -> tuple[dict[str, Any] | None, str]:
    """The manifest of the machine code if it was compiled from the current sources; otherwise None and the reason."""
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
