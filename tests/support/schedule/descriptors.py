"""Descriptors whose offloaded parts are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from netstack.schedule.descriptors.descriptors import BlobKey, MaybeOffloaded, TaskDeploymentDescriptor


def loaded(descriptor: TaskDeploymentDescriptor, fetch: Callable[[BlobKey], bytes]) -> TaskDeploymentDescriptor:
    """The same descriptor with everything inline; `fetch` reads a blob."""

    def inline(part: MaybeOffloaded) -> bytes:
        return part if isinstance(part, bytes) else fetch(part)

    return replace(
        descriptor,
        job_information=inline(descriptor.job_information),
        task_information=inline(descriptor.task_information),
        gates=tuple(replace(gate, groups=tuple(inline(group) for group in gate.groups)) for gate in descriptor.gates),
    )
