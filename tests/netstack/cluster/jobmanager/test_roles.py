"""Which secret was proven decides who one may be."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jobmanager.scripted_taskmanager import client, document, jobmanager
from served_pages import ask, pipeline

from netstack.base.errors import AuthenticationFailed, ConfigError, ConnectionLost, RemoteProtocolError, RequestRefused
from netstack.base.tls import certificates
from netstack.base.tls.tls_files import FOLDER_VARIABLE
from netstack.cluster.control.link import CLIENT, TASKMANAGER, ControlLink, dial
from netstack.cluster.control.messages import Refused
from netstack.cluster.jobmanager.client import open_job_client, owner_key
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.datasets import DatasetRecord
from netstack.cluster.jobmanager.stored_files import FORMAT, write_document
from netstack.cluster.web.guard import MAX_SESSIONS, LoginSessions
from netstack.cluster.web.serve import open_web
from netstack.network.connection.authentication import Secret, prove_dialler

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


async def test_a_certificate_of_a_taskmanager_gives_no_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates of one authority are alike: whose secret was proven decides, whoever shows which of them."""
    certificates.make_authority(tmp_path / "authority", name="test", days=2)
    certificates.make_authority(tmp_path / "other", name="other", days=2)
    certificates.make_host(tmp_path / "host", tmp_path / "authority", ["127.0.0.1"], days=1)
    certificates.make_host(tmp_path / "stranger", tmp_path / "other", ["127.0.0.1"], days=1)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "host"))
    async with jobmanager(**SECRETS | {"listen": "tls+tcp://127.0.0.1:0"}) as manager:
        with pytest.raises(RemoteProtocolError, match="requires a shared secret"):
            await dial(manager.address, role=TASKMANAGER, name="x", facts={"slots": 1, "data": "tls+tcp://127.0.0.1:1"})
        for role in (TASKMANAGER, "jobmanager"):
            link = await greet(manager.address, role, CLIENTS)
            refusal = await link.receive()
            assert isinstance(refusal, Refused)
            assert "clients' secret" in refusal.text
            link.close()
        assert not [*manager.taskmanagers.all()]
        async with open_job_client(manager.address, secret=CLIENTS) as user:
            mine = await user.submit(pipeline())
        with pytest.raises((AuthenticationFailed, ConnectionLost)):
            await greet(f"{manager.address}?folder={tmp_path / 'stranger'}", CLIENT, CLUSTER)
        async with open_job_client(manager.address, secret=CLIENTS) as user:
            assert (await user.job(mine))["name"] == "pipeline"


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
            actual = await ask(f"{url}/jobs/{job_id}", token=secret.web_token(), method="PATCH")
            assert actual[0] == expected


def test_a_session_knows_which_secret_its_token_was_of() -> None:
    sessions = LoginSessions([CLUSTER, CLIENTS], is_secure=False)
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


async def test_a_client_reads_no_definition_and_releases_no_dataset_of_another(own_folder: Path) -> None:
    def dataset(job_id: str, at: float) -> DatasetRecord:
        return DatasetRecord("set", job_id, "keeps", at, "str", ())

    async with jobmanager(**SECRETS) as manager:
        async with open_job_client(manager.address, secret=CLIENTS) as user:
            mine = await user.submit(pipeline())
            await manager.keep_dataset(dataset(mine, 1.0))
            assert (await user.definition(mine))["job_id"] == mine
        somebody_else()
        async with open_job_client(manager.address, secret=CLIENTS) as other:
            theirs = await other.submit(pipeline())
            with pytest.raises(RequestRefused, match="by another user"):
                await other.definition(mine)
            with pytest.raises(RequestRefused, match=r"kept by .* another user: .* --shared"):
                await other.release_dataset("set")
            with pytest.raises(ConfigError, match="another user has one of this name"):
                await manager.keep_dataset(dataset(theirs, 2.0))
            assert manager.datasets.find("set").job_id == mine
        async with open_job_client(manager.address, secret=CLUSTER) as operator:
            assert (await operator.definition(mine))["job_id"] == mine
            assert await operator.release_dataset("set") == 0
        async with open_job_client(manager.address, secret=CLIENTS) as other:
            await manager.keep_dataset(dataset(theirs, 3.0))
            assert await other.release_dataset("set") == 0


def test_log_ins_of_clients_end_no_session_of_an_operator() -> None:
    sessions = LoginSessions([CLUSTER, CLIENTS], is_secure=False)

    def log_in(secret: Secret) -> dict[str, str]:
        cookie = sessions.log_in(secret.web_token())
        assert cookie is not None
        return {"cookie": cookie.partition(";")[0]}

    operator = log_in(CLUSTER)
    first, *_, last = [log_in(CLIENTS) for _ in range(2 * MAX_SESSIONS)]
    assert [sessions.may(each) for each in (operator, first, last)] == [True, False, True]
    assert len(sessions._ends) == MAX_SESSIONS + 1


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda job: job.update(name="x" * 3_000_000), "name has 3000000 characters"),
        (lambda job: job["operators"][0].update(uid="x" * 300), r"operators\[0\].uid has 300 characters"),
        (lambda job: job["operators"][1]["inputs"][0].update({"from": "x" * 300}), r"inputs\[0\].from has 300"),
        (lambda job: job["operators"][0].update(parameters={"x": "y" * 2_000_000}), "parameters have 2000008B"),
        (lambda job: job["operators"][0].update({"x" * 300: 1}), "is no name of at most 256 characters"),
        (lambda job: job.update(checkpoint_folder="/x" * 4096), "checkpoint_folder has 8192 characters"),
    ],
)
async def test_no_text_of_a_job_is_long(change: Callable[[Any], None], place: str) -> None:
    job = document(pipeline())
    change(job)
    async with jobmanager() as manager, client(manager) as user:
        with pytest.raises(AssertionError, match=place):  # the refusal
            await user.ask("submit", document=job)
        with pytest.raises(AssertionError, match=r"code\.x has 5000 characters"):
            await user.ask("submit", document=document(pipeline()), code={"x": "y" * 5000})
        assert (await user.ask("jobs"))["jobs"] == []


async def test_summaries_come_in_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Long names of an earlier release made the answer too large for everybody."""
    monkeypatch.setattr("netstack.cluster.jobmanager.views.bounds.PAGE_BYTES", 3000)
    stored = {"restore": None, "code": {}, "builds": {}}
    for number in range(10):
        job = {**stored, "job_id": f"{number:016}", "document": {"name": "x" * 3_000_000}, "submitted_at": number % 3}
        folder = tmp_path / "jobs" / f"{number:016}"
        write_document(folder / "job.json", {"format": FORMAT, **job})
        end = {"state": "failed", "reason": "y" * 1_000_000, "ended_at": 1, "results": {}}
        write_document(folder / "end.json", {"format": FORMAT, **end})
    async with (
        jobmanager(listen="tcp://127.0.0.1:0", folder=str(tmp_path)) as manager,
        open_job_client(manager.address) as user,
    ):
        actual = await user.jobs()
        assert sorted(each["job_id"] for each in actual) == [f"{number:016}" for number in range(10)]
        assert max(len(each["name"]) for each in actual) == 256
        assert max(len(each["reason"]) for each in actual) == 4096
        assert "after" in await user._questions.ask("jobs", {}), "it came in pages"
        for wrong in ("x", [1], [1.0, "x"], ["datasets", 1.0, "x"], ["jobs", 1, "x"], ["jobs", 1.0, "x", 2]):
            with pytest.raises(RequestRefused, match="where a page ended"):
                await user._questions.ask("jobs", {"after": wrong})
