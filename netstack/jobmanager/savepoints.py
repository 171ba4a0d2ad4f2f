"""A savepoint of one job as the beginning of another.

Takes: the folder of a savepoint or checkpoint, and the folder of a job's checkpoints. Gives: its number there.

Rules: it is read and verified before it is copied, and copied before the job is accepted; the job never looks at the
original again. The calls block.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

from ..checkpoint.storage import CheckpointStorage
from ..errors import CheckpointError, CheckpointStorageError

_FOLDER: Final = re.compile(r"chk-(\d{8,18})")


def adopt_savepoint(savepoint: str, folder: str) -> int:
    """Copies a savepoint among a job's checkpoints.

    Args:
        savepoint: its folder, as `netstack savepoint` tells it; or a folder of checkpoints, of which the newest counts.
        folder: of the new job.

    Returns:
        The number under which it is there.

    Raises:
        CheckpointStorageError: it is no complete checkpoint, damaged, or cannot be copied; the text says which and why.
    """
    path = Path(savepoint)
    match = _FOLDER.fullmatch(path.name)
    if match is None:
        found = CheckpointStorage(path).newest() if path.is_dir() else None
        if found is None:
            raise CheckpointStorageError(
                f"{savepoint} holds no complete savepoint; give the folder that `netstack savepoint` told"
            )
        path, checkpoint_id = Path(found.path), found.checkpoint_id
    else:
        checkpoint_id = int(match[1])
    try:
        CheckpointStorage(path.parent).read(checkpoint_id)
    except CheckpointError as error:
        raise CheckpointStorageError(f"{savepoint} is no complete savepoint: {error}") from error
    target = Path(CheckpointStorage(folder).path(checkpoint_id))
    if target.exists() and target.samefile(path):
        return checkpoint_id
    part = target.with_name(f".{target.name}.part")
    try:
        os.makedirs(target.parent, exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(path, part)
        os.replace(part, target)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise CheckpointStorageError(f"{savepoint} cannot be copied to {target}: {error}") from error
    return checkpoint_id
