"""Which secret was proven decides who one may be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from scripted_taskmanager import jobmanager
from served_pages import ask, pipeline

from netstack.control.link import CLIENT, TASKMANAGER, ControlLink, dial
from netstack.control.messages import Refused
from netstack.errors import AuthenticationFailed, ConfigError, RequestRefused
from netstack.jobmanager.client import open_job_client, owner_key
from netstack.jobmanager.config import JobManagerConfig
from netstack.runtime.authentication import Secret, prove_dialler
from netstack.web.serve import open_web
from netstack.web.sessions import Sessions

CLUSTER, CLIENTS = Secret.generate(), Secret.generate()
SECRETS = {"listen": "tcp://127.0.0.1:0", "secret": CLUSTER, "client_secret": CLIENTS}


async def greet(address: str, role: str, secret: Secret) -> ControlLink:
    facts = {"slots": 1, "data": "tcp://127.0.0.1:1"}
    link, _ = await dial(address, role=role, name="x", facts=facts, prove=partial(prove_dialler, secret=secret))
    return link


async def test_who_proves_the_clients_secret_is_a_client() -> None:
    async with jobmanager(**SECRETS) as manager:
        for secret in (CLIENTS, CLUSTER):
            async with open_job_client(manager.address, secret=secret) as user:
                assert (await user.job(await user.submit(pipeline())))["name"] == "pipeline"
        for role in (TASKMANAGER, "jobmanager", "anything"):
            link = await greet(manager.address, role, CLIENTS)
            refusal = await link.receive()
            assert isinstance(refusal, Refused)
            assert "has proven the clients' secret; give it the secret of the cluster" in refusal.text
            link.close()
        assert not [*manager.taskmanagers.all()]
        link = await greet(manager.address, TASKMANAGER, CLUSTER)
        assert type(await link.receive()).__name__ == "OpenJob", "it is given a task's job"
        link.close()
        with pytest.raises(AuthenticationFailed):
            await greet(manager.address, CLIENT, Secret.generate())


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    owner_key.cache_clear()
    yield tmp_path
    owner_key.cache_clear()


def somebody_else() -> None:
    """Whoever connects next is another user."""
    (Path(os.environ["XDG_CONFIG_HOME"]) / "netstack" / "owner").unlink()
    owner_key.cache_clear()


@pytest.mark.parametrize("is_shared", [False, True])
async def test_who_submitted_a_job_may_end_it_and_others_only_if_jobs_are_shared(
    own_folder: Path, is_shared: bool
) -> None:
    async with jobmanager(**SECRETS, is_shared=is_shared) as manager:
        async with open_job_client(manager.address, secret=CLIENTS) as user:
            jobs = [await user.submit(pipeline()) for _ in range(3)]
        async with open_job_client(manager.address, secret=CLIENTS) as again:
            assert await again.cancel(jobs[0]) == "canceled"
        if not is_shared:
            assert (own_folder / "netstack" / "owner").stat().st_mode & 0o077 == 0
            somebody_else()
        async with open_job_client(manager.address, secret=CLIENTS) as other:
            if is_shared:
                assert await other.cancel(jobs[1]) == "canceled"
            else:
                for asked in (other.cancel, other.savepoint):
                    with pytest.raises(RequestRefused, match=r"was submitted by another user: .* --shared"):
                        await asked(jobs[1])
                assert (await other.job(jobs[1]))["ended_at"] is None, "everybody may look"
        async with open_job_client(manager.address, secret=CLUSTER) as operator:
            assert await operator.cancel(jobs[2]) == "canceled"


@pytest.mark.parametrize(("is_shared", "status"), [(False, 403), (True, 202)])
async def test_the_page_ends_jobs_for_who_may(is_shared: bool, status: int) -> None:
    async with (
        jobmanager(**SECRETS, is_shared=is_shared) as manager,
        open_web(manager, "127.0.0.1:0", secret=CLUSTER, client_secret=CLIENTS, may_change=True) as url,
        open_job_client(manager.address, secret=CLUSTER) as user,
    ):
        for secret, expected in ((CLIENTS, status), (CLUSTER, 202)):
            job_id = await user.submit(pipeline())
            found = await ask(f"{url}/jobs/{job_id}", token=secret.web_token(), method="PATCH")
            assert found[0] == expected


def test_a_session_knows_which_secret_its_token_was_of() -> None:
    sessions = Sessions([CLUSTER, CLIENTS], is_secure=False)
    for secret, may_change in ((CLUSTER, True), (CLIENTS, False)):
        cookie = sessions.log_in(secret.web_token())
        assert cookie is not None
        for headers in ({"cookie": cookie.partition(";")[0]}, {"authorization": f"Bearer {secret.web_token()}"}):
            assert sessions.may(headers)
            assert sessions.may(headers, only=1) is may_change


async def test_tokens_of_either_are_good_for_the_page() -> None:
    async with (
        jobmanager(**SECRETS) as manager,
        open_web(manager, "127.0.0.1:0", secret=CLUSTER, client_secret=CLIENTS) as url,
    ):
        for secret, status in ((CLUSTER, 200), (CLIENTS, 200), (Secret.generate(), 401)):
            assert (await ask(f"{url}/overview", token=secret.web_token()))[0] == status


def test_secrets_that_tell_nobody_apart_are_refused() -> None:
    with pytest.raises(ConfigError, match="give both"):
        JobManagerConfig(client_secret=CLIENTS)
    with pytest.raises(ConfigError, match="equals the cluster secret"):
        JobManagerConfig(secret=CLUSTER, client_secret=Secret(CLUSTER.reveal()))
