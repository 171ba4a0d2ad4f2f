"""Which secret was proven decides who one may be."""

from __future__ import annotations

from functools import partial

import pytest
from scripted_taskmanager import jobmanager
from served_pages import ask, pipeline

from netstack.control.link import CLIENT, TASKMANAGER, ControlLink, dial
from netstack.control.messages import Refused
from netstack.errors import AuthenticationFailed, ConfigError
from netstack.jobmanager.client import open_job_client
from netstack.jobmanager.config import JobManagerConfig
from netstack.runtime.authentication import Secret, prove_dialler
from netstack.web.serve import open_web

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
    with pytest.raises(ConfigError, match="is that of the cluster"):
        JobManagerConfig(secret=CLUSTER, client_secret=Secret(CLUSTER.reveal()))
