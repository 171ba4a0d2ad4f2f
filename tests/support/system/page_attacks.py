"""What strangers and broken clients send to a port that speaks HTTP: bytes, and what a server may answer."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from typing import Final, NamedTuple

HOST: Final = b"Host: 127.0.0.1\r\n"


class Attack(NamedTuple):
    """Parts, sent with a pause after each; the statuses of HTTP that may answer."""

    parts: tuple[bytes, ...]
    statuses: tuple[int, ...] = (400,)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _literal(key: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(key)]) + key + bytes([len(value)]) + value


PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0)
_AUTHORITY = _literal(b":authority", b"other.example")
_GET, _POST, _HTTP, _ROOT = b"\x82", b"\x83", b"\x86", b"\x84"
_CONNECT = _literal(b":method", b"CONNECT")
_UPGRADE = b"Connection: Upgrade\r\nUpgrade: %b\r\n"
_SOCKET = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
_CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(189))

ATTACKS: Final[dict[str, Attack]] = {
    "HTTP/2 priorities": Attack(
        (PREFACE + b"".join(_frame(2, 0, 1 + 2 * n, b"\0\0\0\0\1") for n in range(1001)),), (505,)
    ),
    "HTTP/2 upload to a wrong name": Attack(
        (PREFACE + _frame(1, 4, 1, _POST + _HTTP + _ROOT + _AUTHORITY), _frame(0, 0, 1, b"z" * 1000)), (505,)
    ),
    "HTTP/2 large content-length": Attack(
        (
            PREFACE + _frame(1, 4, 1, _POST + _HTTP + _ROOT + _AUTHORITY + _literal(b"content-length", b"9" * 12)),
            _frame(0, 0, 1, b"z" * 1000),
        ),
        (505,),
    ),
    "HTTP/2 CONNECT without a path": Attack((PREFACE + _frame(1, 5, 1, _CONNECT + _AUTHORITY),), (505,)),
    "HTTP/2 path with 0xff": Attack(
        (PREFACE + _frame(1, 5, 1, _GET + _HTTP + _literal(b":path", b"/\xff") + _AUTHORITY),), (505,)
    ),
    "HTTP/2 extended CONNECT": Attack(
        (PREFACE + _frame(1, 4, 1, _CONNECT + _literal(b":protocol", b"websocket") + _HTTP + _ROOT + _AUTHORITY),),
        (505,),
    ),
    "WebSocket and bytes": Attack(
        (b"GET / HTTP/1.1\r\n" + HOST + _UPGRADE % b"websocket" + _SOCKET + b"\r\n", b"\x81\x7f" + b"\xff" * 100),
        (200, 400),
    ),
    "upload to a wrong name": Attack(
        (b"POST / HTTP/1.1\r\nHost: other.example\r\nContent-Length: 60000\r\n\r\n", b"z" * 60000), (421,)
    ),
    "HTTP/2 by upgrade": Attack(
        (b"GET / HTTP/1.1\r\n" + HOST + _UPGRADE % b"h2c" + b"HTTP2-Settings: AAAA\r\n\r\n", PREFACE), (200,)
    ),
    "path with 0xff": Attack((b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n",)),
    "proxy": Attack((b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n" + HOST + b"\r\n", b"SSH-2.0-x\r\n" * 20)),
    "whole address": Attack((b"GET http://127.0.0.1/jobs HTTP/1.1\r\n" + HOST + b"\r\n",)),
    "long line": Attack((b"GET /" + b"a" * 1_000_000,), (400, 414, 431)),
    "many headers": Attack(
        (b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"a%d: b\r\n" % n for n in range(50_000)),), (431,)
    ),
    "chunk without size": Attack(
        (b"POST /netstack/session HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n", b"zz\r\n" * 30)
    ),
    "endless chunk": Attack(
        (
            b"POST /netstack/session HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n",
            b"fffffffffffffff\r\n" + b"x" * 200_000,
        ),
        (413,),
    ),
    "two lengths": Attack(
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcdeGET / HTTP/1.1\r\n",)
    ),
    "many requests at once": Attack(((b"GET /jobs HTTP/1.1\r\n" + HOST + b"\r\n") * 500,), (401,)),
    "TLS": Attack((_CLIENT_HELLO,)),
    "random": Attack((random.Random(7).randbytes(65_536) + b"\r\n\r\n",), (400, 431)),
    "unknown version": Attack((b"GET / HTTP/9.9\r\n\r\n" + b"\0" * 64,), (505,)),
}


def attack(port: int, name: str, context: float = 10.0) -> bytes:
    """Sends an attack; returns what came back until the other end closed, or the end of an answer."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), context) as peer:
        try:
            for part in ATTACKS[name].parts:
                peer.sendall(part)
                peer.settimeout(0.05 if part is not ATTACKS[name].parts[-1] else context)
                with contextlib.suppress(TimeoutError):
                    received += peer.recv(1 << 16)
                peer.settimeout(context)
        except OSError:  # the other end has closed, perhaps without reading all
            return received or b"closed"
        return received or b"closed"


def reset(port: int) -> None:
    """Half a request, and then a reset."""
    with socket.create_connection(("127.0.0.1", port), 10.0) as peer:
        peer.sendall(b"GET /jobs HTTP/1.1\r\nHo")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
