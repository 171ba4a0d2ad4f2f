"""`SubscriberPort`: the control port of a Subscriber, which stages rows and commits epochs.

| request | sent by | action |
|---|---|---|
| `stage` | a task, which publishes its rows as a partition | reads the partition into a file; answers when it is on the disk |
| `commit` | the driver, when all tasks of a batch have ended | commits the named attempts as an epoch |
| `abort` | the driver, when a task has failed | deletes the rows of the batch |

Rules: credit holds a writer back. Rows are read as fast as the disk takes them, and not at all while `max_epochs` are
not processed or `MAX_STAGING` attempts are being read. An attempt that fails gets an answer with the error; an attempt
whose connection ends leaves no file.
"""  # noqa: E501 - a table's rows

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, final

import trio

from ..base.errors import ConfigError, RequestRefused
from ..base.ids import ChannelDescriptor
from ..base.text.safe_text import safe_repr
from ..base.timing.wakeup import Signal
from ..base.transport import Listener
from ..cluster.control.codec import Plain
from ..cluster.control.link import CLIENT, HEARTBEAT_TIMEOUT_S, SUBSCRIBER, ControlLink, Greeting
from ..cluster.control.port import Answers, ControlPort, answer_questions
from ..network.connection.admission import Admission
from ..network.connection.authentication import Secret
from ..network.environment import NetworkEnvironment
from ..network.reader import RecordReader
from .epoch_folder import Attempt, EpochFolder

LOGGER: Final = logging.getLogger("netstack.spark")
MAX_STAGING: Final = 64
_HANDSHAKE_S: Final = 10.0


@final
class SubscriberPort:
    """Serves writers.

    Args:
        name: the stream's name.
        folder: called in threads, one call at a time.
        network: opens gates to writers.
        secret: shared with the writers.
        max_epochs: writers block while this many epochs are not processed.

    Attributes:
        changed: set when an epoch was committed or processed.
    """

    def __init__(
        self, name: str, folder: EpochFolder, network: NetworkEnvironment, *, secret: Secret | None, max_epochs: int
    ) -> None:
        self._name = name
        self._folder = folder
        self._network = network
        self._max_epochs = max_epochs
        self._disk = trio.CapacityLimiter(1)
        self._staging = trio.CapacityLimiter(MAX_STAGING)
        self._under_way: dict[trio.CancelScope, Attempt] = {}
        answers: Answers = {"stage": self._stage, "commit": self._commit, "abort": self._abort}
        self._answers = {what: self._of_this_stream(answer) for what, answer in answers.items()}
        self._port = ControlPort(
            Admission(secret, timeout_s=_HANDSHAKE_S),
            LOGGER,
            SUBSCRIBER,
            lambda: {"stream": name},
            self._talk,
            handshake_timeout_s=_HANDSHAKE_S,
            heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S,
        )
        self.changed = Signal()

    async def in_folder(self, action: Callable[[], Any]) -> Any:
        """Runs a call on the folder in a thread; cancellation waits for its end."""
        return await trio.to_thread.run_sync(action, limiter=self._disk)

    async def serve(self, listener: Listener) -> None:
        """Accepts connections until cancelled."""
        await self._port.serve(listener)

    async def _talk(self, link: ControlLink, greeting: Greeting) -> None:
        if greeting.role != CLIENT:
            raise RequestRefused("this is a Subscriber, which accepts writers only: correct the address")
        await answer_questions(link, self._answers, LOGGER, who="a Subscriber", max_asks=MAX_STAGING)

    def _of_this_stream(self, answer: Callable[[Plain], Awaitable[Plain]]) -> Callable[[Plain], Awaitable[Plain]]:
        async def checked(document: Plain) -> Plain:
            if document.get("stream") != self._name:
                raise ConfigError(
                    f"the Subscriber at {self._network.address} has the stream {self._name!r}, not"
                    f" {safe_repr(document.get('stream'))}: correct the option partition"
                )
            return await answer(document)

        return checked

    async def _stage(self, document: Plain) -> Plain:
        writer, batch, partition, token = document["attempt"]
        attempt = Attempt(str(writer), int(batch), int(partition), str(token))
        channel = ChannelDescriptor(str(document["address"]), str(document["partition_id"]), 0)
        while self._folder.waiting >= self._max_epochs and not self._is_committed(attempt):
            await self.changed.wait()
        if self._is_committed(attempt):
            return {"is_committed": True, "rows": 0}
        rows = 0
        with trio.CancelScope() as scope:
            self._under_way[scope] = attempt
            try:
                async with self._staging:
                    rows = await self._fetch(attempt, channel)
            finally:
                del self._under_way[scope]
        if scope.cancelled_caught:
            raise RequestRefused(f"batch {attempt.batch} was aborted")
        return {"is_committed": False, "rows": rows}

    async def _fetch(self, attempt: Attempt, channel: ChannelDescriptor) -> int:
        gate = await self._network.open_gate((channel,))
        reader: RecordReader[Any] = RecordReader(gate, format="arrow")
        try:
            with self._folder.staged(attempt) as staged:
                while (batches := await reader.next_records()) is not None:
                    for batch in batches:
                        await trio.to_thread.run_sync(staged.write, batch)
                await trio.to_thread.run_sync(staged.finish)
                return staged.rows
        finally:
            reader.close()

    async def _commit(self, document: Plain) -> Plain:
        writer, batch = str(document["writer"]), int(document["batch"])
        attempts = [Attempt(writer, batch, int(partition), str(token)) for partition, token in document["attempts"]]
        epoch = await self.in_folder(lambda: self._folder.commit(writer, batch, attempts))
        self.changed.wake()
        return {"epoch": epoch}

    async def _abort(self, document: Plain) -> Plain:
        writer, batch = str(document["writer"]), int(document["batch"])
        for scope, attempt in self._under_way.items():
            if (attempt.writer, attempt.batch) == (writer, batch):
                scope.cancel()
        await self.in_folder(lambda: self._folder.abort(writer, batch))
        return {}

    def _is_committed(self, attempt: Attempt) -> bool:
        return self._folder.is_committed(attempt.writer, attempt.batch)
