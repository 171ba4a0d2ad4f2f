"""One run on one daemon: a TaskManager of its own and the tasks deployed in it; released as a whole.

Takes: settings, deployed tasks, messages of the coordinator. Gives: what the tasks say and how they end.

A run ends when it is closed, whoever asks for that: the coordinator, the end of its connection, the daemon. Then its
tasks are cancelled, its gates, partitions and connections closed, its memory and slots given back. A task that fails
does not end the run: that is for the coordinator to decide, who knows what the others said.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import final

import trio

from ..config import NetworkConfig
from ..errors import ConfigError, LocalProtocolError
from ..runtime.authentication import Secret
from ..runtime.causes import is_secondary, root_cause, told
from ..runtime.task_manager import TaskManager, task_manager_on
from ..transport import ByteStream
from .invokables import AllowList, Invokable, check_builds
from .messages import Deploy, Message, TaskDescriptor, TaskEnded, TaskFailed, TaskSaid
from .routing import RoutedListener, write_route
from .task import Task


@final
class DaemonRun:
    """One run, from `work` to its end.

    Attributes:
        run_id: unique.
        name: for people.
        slots: held.
        config: of its TaskManager; its memory is held too.
        tasks: those deployed, with how each is: `running`, `ended` or `failed`.
        began_s: trio's time of its opening.
    """

    def __init__(
        self,
        run_id: str,
        name: str,
        slots: int,
        config: NetworkConfig,
        data_address: str,
        *,
        secret: Secret | None,
        allowed: AllowList,
        send: Callable[[Message], None],
        on_stream_end: Callable[[], None],
    ) -> None:
        """Nothing is reserved yet.

        Args:
            run_id: see above.
            name: see above.
            slots: see above.
            config: see above.
            data_address: what channels of other daemons name.
            secret: proven on every stream that the run dials.
            allowed: what may be deployed.
            send: to the coordinator.
            on_stream_end: told when a connection that `accept` was given is over.
        """
        self.run_id = run_id
        self.name = name
        self.slots = slots
        self.config = config
        self.tasks: dict[tuple[str, int], str] = {}
        self.began_s = trio.current_time()
        self.reason = ""
        """Why it was closed."""
        self.manager: TaskManager | None = None
        self._listener = RoutedListener(data_address, on_stream_end)
        self._on_stream_end = on_stream_end
        self._secret = secret
        self._allowed = allowed
        self._send = send
        self._running: dict[tuple[str, int], Task] = {}
        self._nursery: trio.Nursery | None = None
        self._closing = trio.Event()

    async def work(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Holds everything of the run until it is closed.

        Raises:
            NetstackError: before it has started: the settings do not work here.

        Cancellation: closes the run.
        """
        try:
            async with (
                task_manager_on(
                    self._listener,
                    self.config,
                    secret=self._secret,
                    greet=self._say_route,
                    on_accepted_end=self._on_stream_end,
                ) as self.manager,
                trio.open_nursery() as self._nursery,
            ):
                task_status.started()
                await self._closing.wait()
                self._nursery.cancel_scope.cancel()
        finally:
            self._listener.close()

    def close(self, reason: str) -> None:
        """Ends it; idempotent. An empty reason is a run that is over."""
        if not self._closing.is_set():
            self.reason = reason
            self._closing.set()

    def accept(self, stream: ByteStream) -> None:
        """A data connection of the run."""
        self._listener.put(stream)

    async def deploy(self, deploy: Deploy) -> None:
        """Creates all tasks, then starts them.

        Raises:
            NetstackError: one of them cannot be; none was started, and the run is of no use any more.

        Cancellation: likewise.
        """
        invokables = await trio.to_thread.run_sync(partial(self._load, deploy))
        manager, nursery = self.manager, self._nursery
        if manager is None or nursery is None or self._closing.is_set():
            raise LocalProtocolError(f"run {self.name!r} is closing: {self.reason or 'it is over'}")
        created = [Task(each, manager, partial(self._say, each)) for each in deploy.tasks]
        for descriptor, task, invokable in zip(deploy.tasks, created, invokables, strict=True):
            key = descriptor.task, descriptor.subtask
            self._running[key] = task
            self.tasks[key] = "running"
            nursery.start_soon(self._run_task, key, task, invokable)

    def tell(self, task: str, subtask: int, message: dict[str, object]) -> None:
        """Passes a message to a task; one that has ended hears nothing."""
        running = self._running.get((task, subtask))
        if running is not None:
            running.told(message)

    def _load(self, deploy: Deploy) -> Sequence[Invokable]:
        """In a thread: imports and reads files."""
        keys = [(each.task, each.subtask) for each in deploy.tasks]
        taken = [f"{name}-{subtask}" for name, subtask in keys if (name, subtask) in self.tasks]
        if taken or len(set(keys)) < len(keys):
            raise ConfigError(f"run {self.name!r}: these tasks are deployed twice: {', '.join(taken) or keys}")
        found = [self._allowed.load(each.invokable) for each in deploy.tasks]
        check_builds(deploy.builds)
        return found

    async def _run_task(self, key: tuple[str, int], task: Task, invokable: Callable[[Task], Awaitable[object]]) -> None:
        failure = "the run was closed"
        try:
            result = await invokable(task)
            self._send(TaskEnded(self.run_id, *key, result))
            failure = ""
            self.tasks[key] = "ended"
        except BaseException as error:
            root = root_cause(error)
            if not isinstance(root, Exception):
                raise
            failure = told(root)
            self.tasks[key] = "failed"
            self._send(TaskFailed(self.run_id, *key, type(root).__name__, str(root), is_secondary(root)))
        finally:
            del self._running[key]
            task.close(failure)

    def _say(self, descriptor: TaskDescriptor, message: dict[str, object]) -> None:
        self._send(TaskSaid(self.run_id, descriptor.task, descriptor.subtask, message))

    async def _say_route(self, stream: ByteStream) -> None:
        await write_route(stream, self.run_id)
