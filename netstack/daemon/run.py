"""One run on one daemon: a TaskManager of its own and the tasks deployed in it; released as a whole.

Takes: settings, deployed tasks, messages of the coordinator. Gives: what the tasks say and how they end.

A run ends when it is closed, whoever asks for that: the coordinator, the end of its connection, the daemon. Then its
tasks are cancelled, its gates, partitions and connections closed, its memory and slots given back. A task that fails
does not end the run: that is for the coordinator to decide, who knows what the others said.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import final

import trio

from ..config import NetworkConfig
from ..errors import ConfigError, NetstackError
from ..runtime.authentication import Secret
from ..runtime.causes import is_secondary, root_cause, told
from ..runtime.network_environment import NetworkEnvironment, network_environment_on
from ..transport import ByteStream
from .invokables import AllowList, Invokable, check_builds, root_package
from .messages import Deploy, Deployed, Message, RunOpened, TaskDescriptor, TaskEnded, TaskFailed, TaskSaid
from .routing import RoutedListener, write_route
from .slots import SlotPool
from .task import INBOX_MESSAGES, Task


@final
class DaemonRun:
    """One run, from its wait for slots to its end.

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
        self.refusal = ""
        """Why it cannot be, or cannot go on; empty for one that was merely closed."""
        self.manager: NetworkEnvironment | None = None
        self._listener = RoutedListener(data_address, on_stream_end)
        self._on_stream_end = on_stream_end
        self._secret = secret
        self._allowed = allowed
        self._send = send
        self._running: dict[tuple[str, int], Task] = {}
        self._nursery: trio.Nursery | None = None
        self._closing = trio.Event()
        self._waiting = trio.CancelScope()

    async def live(self, pool: SlotPool, *, slot_timeout_s: float) -> None:
        """Waits for slots and memory, then holds everything of the run until it is closed.

        Args:
            pool: of the daemon.
            slot_timeout_s: how long to wait for what others hold.

        Raises:
            RequestRefused: there is not enough.
            NetstackError: the settings do not work here.

        Cancellation: closes the run.
        """
        has_slots = False
        with self._waiting:
            await pool.acquire(self.slots, self.config.memory_bytes, timeout_s=slot_timeout_s)
            has_slots = True
        if has_slots:
            try:
                await self._work()
            finally:
                pool.release(self.slots, self.config.memory_bytes)

    async def _work(self) -> None:
        try:
            async with (
                network_environment_on(
                    self._listener,
                    self.config,
                    secret=self._secret,
                    greet=self._say_route,
                    on_accepted_end=self._on_stream_end,
                ) as self.manager,
                trio.open_nursery() as self._nursery,
            ):
                self._send(RunOpened(self.run_id))
                await self._closing.wait()
                self._nursery.cancel_scope.cancel()
        finally:
            self._closing.set()
            self._listener.close()

    def close(self, reason: str) -> None:
        """Ends it, also while it waits for slots; idempotent. An empty reason is a run that is over."""
        if not self._closing.is_set():
            self.reason = reason
            self._closing.set()
            self._waiting.cancel()

    def refuse(self, why: str) -> None:
        """Ends it because it cannot be, or cannot go on; the first reason counts."""
        self.refusal = self.refusal or why
        self.close(why)

    def accept(self, stream: ByteStream) -> None:
        """A data connection of the run."""
        self._listener.put(stream)

    def deploy(self, deploy: Deploy) -> None:
        """Creates all tasks, starts them, and tells the coordinator; refuses the run when one of them cannot be."""
        manager, nursery = self.manager, self._nursery
        if manager is None or nursery is None:
            self.refuse(f"run {self.name!r} is not open yet; deploy when it is")
        elif not self._closing.is_set():
            nursery.start_soon(self._deploy, deploy, manager, nursery)

    def tell(self, task: str, subtask: int, message: dict[str, object]) -> None:
        """Passes a message to a task; one that has ended hears nothing."""
        running = self._running.get((task, subtask))
        if running is None:
            return
        try:
            running.told(message)
        except trio.WouldBlock:
            self.refuse(f"task {running} does not take what it is told: {INBOX_MESSAGES} messages wait")

    async def _deploy(self, deploy: Deploy, manager: NetworkEnvironment, nursery: trio.Nursery) -> None:
        try:
            invokables = await trio.to_thread.run_sync(partial(self._load, deploy), abandon_on_cancel=True)
            created = [Task(each, manager, partial(self._say, each)) for each in deploy.tasks]
        except NetstackError as error:
            self.refuse(str(error) if isinstance(error, ConfigError) else told(error))
            return
        for descriptor, task, invokable in zip(deploy.tasks, created, invokables, strict=True):
            key = descriptor.task, descriptor.subtask
            self._running[key] = task
            self.tasks[key] = "running"
            nursery.start_soon(self._run_task, key, task, invokable)
        self._send(Deployed(self.run_id))

    def _load(self, deploy: Deploy) -> Sequence[Invokable]:
        """In a thread: imports and reads files."""
        keys = [(each.task, each.subtask) for each in deploy.tasks]
        taken = [f"{name}-{subtask}" for name, subtask in keys if (name, subtask) in self.tasks]
        if taken or len(set(keys)) < len(keys):
            raise ConfigError(f"run {self.name!r}: these tasks are deployed twice: {', '.join(taken) or keys}")
        for name, count in Counter(name for name, _ in (*self.tasks, *keys)).items():
            if count > self.slots:
                raise ConfigError(
                    f"run {self.name!r}: {count} subtasks of {name!r} are deployed here, and it holds {self.slots}"
                    " slots: a slot takes one subtask of every task"
                )
        found = [self._allowed.load(each.invokable) for each in deploy.tasks]
        check_builds(sorted({root_package(each.invokable) for each in deploy.tasks}), deploy.builds)
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
            if _is_ours(root):
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


def _is_ours(error: BaseException) -> bool:
    """Whether an error that ends a task is the daemon's to handle: its own cancellation of the run, or Ctrl-C.

    Everything else is the task's failure, `sys.exit()` in an invokable included.
    """
    if isinstance(error, trio.Cancelled):
        return trio.current_effective_deadline() == -math.inf
    return isinstance(error, KeyboardInterrupt)
