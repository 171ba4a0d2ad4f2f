"""A job with a network of its own keeps within the folder and the disk that its TaskManager has for shuffles."""

from __future__ import annotations

import pytest

from netstack.base.config import NetworkConfig
from netstack.cluster.taskmanager.environments import network_of_job


@pytest.mark.parametrize(
    ("asked", "own", "given"), [(None, None, None), (None, 50, 50), (20, None, 20), (20, 50, 20), (80, 50, 50)]
)
def test_the_smaller_limit_of_the_disk_counts(asked: int | None, own: int | None, given: int | None) -> None:
    job = NetworkConfig(shuffle_disk_bytes=asked)
    assert network_of_job(job, NetworkConfig(shuffle_disk_bytes=own)).shuffle_disk_bytes == given


def test_the_folder_of_the_job_comes_first(tmp_path_factory: pytest.TempPathFactory) -> None:
    folders = [str(tmp_path_factory.mktemp(name)) for name in ("job", "own")]
    own = NetworkConfig(shuffle_directory=folders[1])
    assert network_of_job(NetworkConfig(shuffle_directory=folders[0]), own).shuffle_directory == folders[0]
    assert network_of_job(NetworkConfig(), own).shuffle_directory == folders[1]
