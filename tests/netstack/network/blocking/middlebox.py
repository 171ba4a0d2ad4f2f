"""A box between a consumer and its producer that forwards, until it is told to misbehave. Real sockets, one thread."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from typing import final
from urllib.parse import urlsplit


@final
class Middlebox:
    """For one connection.

    Attributes:
        address: the URL to dial instead of the producer's.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = parts.hostname, parts.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._is_mute = threading.Event()
        self._ends: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_mute(self) -> None:
        """Forwards nothing more, in either direction, as if the host beyond were gone."""
        self._is_mute.set()

    def say(self, data: bytes) -> None:
        """Says something to the consumer in the producer's name."""
        self._ends[0].sendall(data)

    def reset(self) -> None:
        """Breaks the connection to the consumer."""
        self._is_mute.set()
        self._ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._ends[0].close()

    def close(self) -> None:
        """Ends everything."""
        self._is_mute.set()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(timeout=120)
        for end in self._ends:
            end.close()

    def _run(self) -> None:
        try:
            consumer, _ = self._listener.accept()
            producer = socket.create_connection(self._target)
            self._ends += [consumer, producer]
            with selectors.DefaultSelector() as selector:
                selector.register(consumer, selectors.EVENT_READ, producer)
                selector.register(producer, selectors.EVENT_READ, consumer)
                while not self._is_mute.is_set():
                    for key, _ in selector.select(0.05):
                        if self._is_mute.is_set():
                            return
                        data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                        if not data:
                            return
                        key.data.sendall(data)
        except OSError:
            pass  # closed by the test
