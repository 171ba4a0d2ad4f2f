"""Drives one connection: moves bytes between a byte stream and a `wire.Connection`.

Takes: a connected `ByteStream`. Gives: received bytes to the protocol logic, and its output to the stream.

Rules (measured; see bench/ and DESIGN.md, "Try first"):
- The system call is tried first; a task parks only when it would block. Any code that has just produced data or is
  about to wait may call `write_now` and `read_now`, so under load no task is switched per read or write. The pump's own
  tasks handle the rest: a full socket, and data that arrives while nobody reads.
- No exception of the stream, of the peer or of our own handling reaches the caller: the pump closes, and channels and
  partitions are notified. A failure caused by one peer affects only that peer.
- A peer that causes work without end queues with others like it (`fair_share`). The size of a read follows from the
  number of control frames in the previous reads.
- A producer may have sent everything and closed while we still announce credit: if a consumer's write fails, only its
  writing ends, and arrived data is read first.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final, final

import trio

from ...base.errors import ConnectionLost, NetstackError, RemoteProtocolError
from ...base.text.safe_text import safe_error, safe_text
from ...base.timing.wakeup import Signal
from ...base.transport import ByteStream
from ...exchange.buffer.segment import Segment
from ...exchange.wire.connection import Connection
from ...exchange.wire.frames import Goodbye
from ...exchange.wire.outgoing_batch import OutgoingBatch
from ...exchange.wire.states import State
from ..waiting.loop_lock import LoopLock
from .fair_share import TURN_S, WorkAccount, fair_share
from .outgoing import OUTGOING_TRANSITIONS, OutgoingInput, OutgoingState
from .session_stream import SessionStream

READS_A_TURN: Final = 8
"""Reads before the reader task lets others run: 8 x 256 KiB is about 300 us of work. `TURN_S` bounds it too."""

FRAMES_A_READ: Final = 256
"""The target number of control frames per read, estimated from previous reads: less than a millisecond of work."""

MIN_READ_BYTES: Final = 4 * 1024
"""The size of the first read of a connection, and of the smallest."""

DRAIN_S: Final = 1.0
"""How long a consumer that can no longer write waits for the end of its input; a broken stream ends at once."""

LOOK_IN_S: Final = 5.0
"""How often the loop reads a connection that a thread reads, for heartbeats (at least twice per interval)."""

SHORT_READ_BYTES: Final = 16 * 1024
"""A read that returns less has usually emptied the socket."""

_OVER: Final = (OutgoingState.CLOSING, OutgoingState.CLOSED)
_SENDS_NOTHING: Final = (OutgoingState.ENDED, *_OVER)


@final
class Pump:
    """Drives one connection."""

    def __init__(
        self,
        stream: ByteStream,
        connect: Callable[[Callable[[], None]], Connection],
        *,
        unsent: dict[Pump, None],
        on_closed: Callable[[Pump, Exception | None], None],
        on_mistake: Callable[[str, Exception], None],
        on_continue: Callable[[Pump], None] | None,
        answers: bool,
        loop_lock: LoopLock,
    ) -> None:
        """Queues our hello.

        Args:
            stream: owned by the pump.
            connect: creates the connection; its argument is called when there is something to write.
            unsent: the connections with something to write; the pump adds itself.
            on_closed: called once, when the connection is over.
            on_mistake: called with errors caused neither by the peer nor by the stream.
            on_continue: called when the stream turns out to resume another session: takes it away, and the pump ends.
            answers: whether a read is followed by a write in the same turn, as credit is answered by data. Data is not
                answered by credit at once: its consumer announces credit for several buffers (`read_connections`).
            loop_lock: the lock of the loop.
        """
        self.stream = stream
        self.is_dirty = False
        self.opened = trio.Event()
        """Set when both hellos have been exchanged (at once in a dialect without hellos), or the connection failed."""
        self.error: Exception | None = None
        self.landing: list[Segment] = []
        """The segments that payloads landed in, after the end of the connection; their lender takes them back."""
        self._unsent = unsent
        self._on_closed = on_closed
        self._on_mistake = on_mistake
        self.readers = 0
        """The number of gates that have read from it so far."""
        self._on_continue = on_continue
        self._answers = answers
        self._batch: OutgoingBatch | None = None
        self._is_full = False
        self._has_rest = False  # of a resumable stream: resent while it waits until it is writable
        self._is_writing = False
        self._is_reading = False
        self._is_paused = False
        self._read_bytes = MIN_READ_BYTES
        self._outgoing = OutgoingState.OPEN
        self._write_error: ConnectionLost | None = None
        self._loop_lock = loop_lock
        self._now = self._loop_lock.now
        self.is_plain = stream.descriptor() is not None and not isinstance(stream, SessionStream)
        """Whether it is a plain socket, which a thread may use without the loop."""
        self._is_left = False
        self._look_in_s = LOOK_IN_S
        self._work = Signal()
        self._resumed = Signal()
        self._scope = trio.CancelScope()
        self._clock: Callable[[], float] = perf_counter
        self.connection = connect(self._write_wanted)
        if self.connection.state is not State.GREETING:
            self.opened.set()
        self._write_wanted()

    @property
    def is_closed(self) -> bool:
        """Whether the connection is over."""
        return self._outgoing is OutgoingState.CLOSED

    @property
    def is_ending(self) -> bool:
        """Whether the connection is over, or the loop will end it next."""
        return self._outgoing in _OVER

    def _goes_on(self, what: OutgoingInput) -> None:
        self._outgoing = OUTGOING_TRANSITIONS[self._outgoing, what]

    # These may be called from anywhere; they never wait and never raise.

    def write_now(self) -> None:
        """Sends ready data until there is no more, or the stream is full."""
        if self._loop_lock.is_inside and not self.is_plain:  # only the loop may use other streams
            self._work.wake()
            return
        if self._is_writing or self._is_full:
            return
        if self._outgoing in _SENDS_NOTHING:
            self.is_dirty = False
            return
        self._is_writing = True
        connection, stream = self.connection, self.stream
        try:
            while True:
                batch = self._batch
                if batch is None:
                    self.is_dirty = False
                    # Stored before the stream can fail, because closing the pump recycles its buffers.
                    batch = self._batch = connection.collect()
                    if batch is None:
                        break
                sent = stream.try_send(batch.pieces)
                connection.bytes_sent += sent
                connection.sends += 1
                if not batch.take(sent):
                    self._is_full = True
                    self._work.wake()
                    break
                self._batch = None
                if batch.has_room and not self.is_dirty:
                    break  # everything was sent
        except ConnectionLost as error:
            self._stop_writing(error)
        except NetstackError as error:
            self._fail(error)
        except Exception as error:  # a bug here or in a callback must end only this connection
            self._contain(error, "writing to")
        finally:
            self._is_writing = False

    def retry(self) -> None:
        """Writes like `write_now`, even if the stream was full."""
        if self._loop_lock.is_inside and not self.is_plain:
            return  # the task that waits for room must still see that it is full
        if self._is_full and not self._is_reading:
            self._is_full = False
            self.write_now()

    def write_between_reads(self) -> None:
        """Writes like `write_now`, except during a read, from which this call may come.

        A failing write closes the connection, whose memory the read still fills.
        """
        if not self._is_reading:
            self.write_now()

    def read_now(self, reads: int = 1, until: float | None = None) -> int:
        """Reads arrived data, with at most `reads` system calls; none begins after `until` (`fair_share`'s clock).

        Returns:
            The number of bytes of the last read; if at least `SHORT_READ_BYTES`, there may be more.
        """
        if self._is_reading or self._is_paused or self._outgoing in _OVER:
            return 0
        if self._loop_lock.is_inside and not self.is_plain:
            return 0
        self._is_reading = True
        connection = self.connection
        received = 0
        try:
            for _ in range(reads):
                if until is not None and received and self._clock() >= until:
                    break
                windows = connection.windows()
                if len(windows[-1]) > self._read_bytes and len(windows) <= 2:
                    windows[-1] = windows[-1][: self._read_bytes]
                frames = connection.control_frames
                count = self.stream.try_receive_into(windows)
                if count is None:
                    received = 0
                    break
                if count == 0:
                    if connection.state is State.FAREWELL:
                        self._say_goodbye()
                    connection.end_of_stream()
                    self.abort(None)
                    return 0
                connection.advance(count, self._now())
                if connection.continuation is not None:
                    self._hand_over()
                    return 0
                received = count
                is_full = count >= self._read_bytes
                frames = connection.control_frames - frames
                if frames > FRAMES_A_READ:  # the next read is smaller
                    self._read_bytes = max(MIN_READ_BYTES, count * FRAMES_A_READ // frames)
                elif frames < FRAMES_A_READ // 2 and is_full:
                    self._read_bytes = 2 * count
                if (count < SHORT_READ_BYTES and not is_full) or self._is_paused:
                    break  # probably empty: another system call costs as much as a read
                if is_full:
                    received = max(received, SHORT_READ_BYTES)
                if connection.awaits_place:
                    break
        except NetstackError as error:
            self._fail(error)
            return 0
        except Exception as error:  # as for writing: it must end only this connection
            self._contain(error, "handling what came from")
            return 0
        finally:
            self._is_reading = False
        if not self.opened.is_set() and not connection.is_greeting:
            self._loop_lock.soon(self.opened.set)
        if connection.state is State.FAREWELL:
            self.leave()
        if self.is_dirty:
            if self._answers:
                self.write_now()
            elif not self._loop_lock.is_inside:
                self._work.wake()
        return received

    def leave_to_thread(self, leave: bool) -> None:
        """Sets whether another thread reads, while the loop reads only every few seconds (`loop_lock`)."""
        self._is_left = leave
        if not leave:
            self._resumed.wake()

    def pause_reading(self, pause: bool) -> None:
        """Pauses or resumes reading; arriving data stays in the stream (see `exchange.inbound.uncredited`)."""
        self._is_paused = pause
        if not pause:
            self._resumed.wake()

    def go_on(self) -> None:
        """Resumes: the suspended stream has a new connection; data to be resent goes first."""
        self.connection.excuse(trio.current_time())
        self._has_rest = True
        self._work.wake()

    def settle(self) -> None:
        """Copies data that the stream has not taken yet, so that lent memory may change."""
        if self._batch is not None:
            self._batch.settle()

    def leave(self) -> None:
        """Says goodbye and ends our direction after everything is written; the peer then ends its own. Idempotent."""
        if self._outgoing is OutgoingState.OPEN:
            self._goes_on(OutgoingInput.LEAVE)
            self._work.wake()
            self.leave_to_thread(False)

    def abort(self, error: Exception | None) -> None:
        """Closes at once. Idempotent."""
        if self.is_closed:
            return
        if self._loop_lock.is_inside:  # only the loop may end tasks
            self._goes_on(OutgoingInput.CLOSE_SOON)
            self._loop_lock.soon(functools.partial(self.abort, error))
            return
        self._goes_on(OutgoingInput.CLOSE)
        self.error = error
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.release()
        try:
            self.landing = self.connection.close(error)
        except Exception as mistake:  # a bug in a callback must not prevent the close
            text = f"ending the connection to {safe_text(self.stream.peer)}: {safe_error(mistake)}"
            self._on_mistake(text, mistake)
            self.landing = self.connection.take_landing()
        self.stream.close()
        self.opened.set()
        self._scope.cancel()
        self._on_closed(self, error)

    async def run(self, heartbeat_interval_s: float | None, heartbeat_timeout_s: float) -> None:
        """Runs until the connection is over; cancellation closes it."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._until_closed, self._writer)
                    nursery.start_soon(self._until_closed, self._reader)
                    if heartbeat_interval_s is not None:
                        self._look_in_s = min(LOOK_IN_S, heartbeat_interval_s / 2)
                        heart = functools.partial(self._heart, heartbeat_interval_s, heartbeat_timeout_s)
                        nursery.start_soon(self._until_closed, heart)
        finally:
            self.abort(ConnectionLost(f"the connection to {self.stream.peer} was closed by this TaskManager"))

    async def _until_closed(self, task: Callable[[], Awaitable[None]]) -> None:
        """Runs a task; `close` ends it, because waiting for the stream then raises ClosedResourceError."""
        try:
            await task()
        except trio.ClosedResourceError:
            pass
        except NetstackError as error:
            self._fail(error)
        except Exception as error:  # a bug must end only this connection, not the nursery
            self._contain(error, "the task that serves")

    async def _writer(self) -> None:
        while True:
            if self._write_error is not None:
                await trio.sleep(DRAIN_S)
                self.abort(self._write_error)
            elif self._is_full or self._has_rest:
                self._has_rest = False
                await self.stream.wait_writable()
                self._is_full = False
                self.write_now()
            elif self.is_dirty:
                self.write_now()
            elif self._outgoing is OutgoingState.LEAVING:
                self._say_goodbye()
            elif self._outgoing is OutgoingState.SAID_GOODBYE:
                self._goes_on(OutgoingInput.END)
                self.stream.send_eof()
                await self.stream.keep_sending()
            else:
                await self._work.wait()
                if not self._answers:  # the reader task runs first, and may announce the credit itself
                    await trio.lowlevel.checkpoint()

    async def _reader(self) -> None:
        share = fair_share()
        connection = self.connection
        clock = self._clock = share.clock
        account = WorkAccount(clock())
        while True:
            await self.stream.wait_readable()
            while self._is_left:
                with trio.move_on_after(self._look_in_s):
                    await self._resumed.wait()
                self.read_now(READS_A_TURN)
            while self._is_paused:
                await self._resumed.wait()
            while True:
                start = clock()
                is_more = self.read_now(READS_A_TURN, start + TURN_S) >= SHORT_READ_BYTES
                moved = connection.bytes_received + connection.bytes_sent
                if account.owes(start, clock(), moved):
                    await share.pass_on(account.settle())
                elif is_more:
                    await trio.lowlevel.checkpoint()
                    if connection.awaits_place:  # its reader was woken, and may run second
                        await trio.lowlevel.checkpoint()
                if not is_more:
                    break

    async def _heart(self, interval_s: float, timeout_s: float) -> None:
        while True:
            await trio.sleep(min(interval_s, timeout_s))
            if self.stream.is_suspended:
                self.connection.excuse(trio.current_time())
                continue
            try:
                self.connection.heartbeat(self._now(), interval_s, timeout_s)
            except RemoteProtocolError as error:
                if not self.stream.break_off():
                    self._fail(ConnectionLost(str(error)))

    def _contain(self, error: Exception, doing: str) -> None:
        """Turns any bug of ours into the end of this connection only."""
        text = f"{doing} {safe_text(self.stream.peer)} failed: {safe_error(error)}"
        self._on_mistake(f"{text}; the connection is closed", error)
        failure = ConnectionLost(text)
        failure.__cause__ = error
        self.abort(failure)

    def _hand_over(self) -> None:
        self.write_now()
        if self._batch is not None or self._on_continue is None:
            raise ConnectionLost(f"{self.stream.peer} does not accept our hello")
        self._on_continue(self)
        self.abort(None)

    def _say_goodbye(self) -> None:
        if self._outgoing is OutgoingState.OPEN or self._outgoing is OutgoingState.LEAVING:
            self._goes_on(OutgoingInput.GOODBYE)
            self.connection.send(Goodbye())
            self.write_now()

    def _write_wanted(self) -> None:
        if not self.is_dirty:
            self.is_dirty = True
            self._unsent[self] = None
        lock = self._loop_lock
        if not (self._is_reading or lock.is_held or lock.is_inside):  # else the reader, writer or visitor writes later
            self._work.wake()

    def _stop_writing(self, error: ConnectionLost) -> None:
        """Ends writing: the stream takes no more data, but may still hold data that we wait for."""
        if self._answers or self._is_paused:
            self.abort(error)
            return
        self._goes_on(OutgoingInput.END)
        self._write_error = error
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.release()
        self._work.wake()

    def _fail(self, error: NetstackError) -> None:
        if isinstance(error, RemoteProtocolError) and not self.is_closed and self._batch is None:
            with contextlib.suppress(ConnectionLost):  # the stream is broken too, so the peer gets no reason
                last_words = self.connection.fail(error)
                if last_words:
                    self.stream.try_send([last_words])
        self.abort(error)
