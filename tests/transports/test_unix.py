"""What is particular to unix sockets: a path in the file system, which may be taken, stale or too long."""

from __future__ import annotations

import errno
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from netstack.base.errors import ConfigError, ConnectionLost
from netstack.base.transport import ByteStream
from netstack_transports.unix import MAX_PATH_BYTES, UnixTransport

UNIX = UnixTransport()


@pytest.mark.parametrize("url", ["unix://relative/path", "unix://", "unix:relative"])
async def test_a_path_is_absolute(url: str) -> None:
    for attempt in (UNIX.listen, UNIX.connect):
        with pytest.raises(ConfigError, match="needs an absolute path, such as unix:///"):
            await attempt(url)


async def test_the_longest_path() -> None:
    long = "/" + "x" * MAX_PATH_BYTES
    for attempt in (UNIX.listen, UNIX.connect):
        with pytest.raises(ConfigError, match="107 bytes, the limit") as caught:
            await attempt(f"unix://{long}")
        assert long in str(caught.value)
    with tempfile.TemporaryDirectory() as folder:
        url = f"unix://{folder}/".ljust(MAX_PATH_BYTES + len("unix://"), "y")
        listener = await UNIX.listen(url)
        (await UNIX.connect(url)).close()
        listener.close()


async def test_closing_removes_the_path(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listener = await UNIX.listen(f"unix://{path}")
    assert stat.S_ISSOCK(path.stat().st_mode)
    listener.close()
    assert not path.exists()
    listener.close()


async def test_closing_leaves_the_path_of_another_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = await UNIX.listen(f"unix://{path}")
    path.rename(tmp_path / "elsewhere")
    second = await UNIX.listen(f"unix://{path}")
    first.close()
    (await UNIX.connect(f"unix://{path}")).close()
    path.unlink()
    second.close()


async def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    with pytest.raises(ConnectionLost, match=f"cannot reach unix://{path}: Connection refused"):
        await UNIX.connect(f"unix://{path}")
    listener = await UNIX.listen(f"unix://{path}")
    (await UNIX.connect(f"unix://{path}")).close()
    listener.close()


async def test_a_live_socket_is_not_replaced(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/s"
    listener = await UNIX.listen(url)
    with pytest.raises(OSError, match="in use; choose another path") as caught:
        await UNIX.listen(url)
    assert caught.value.errno == errno.EADDRINUSE
    assert url in str(caught.value)
    (await UNIX.connect(url)).close()
    listener.close()


async def test_a_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(OSError, match="in use"):
        await UNIX.listen(f"unix://{path}")
    assert path.read_text() == "precious"


async def test_no_such_folder(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/no/s"
    with pytest.raises(OSError, match="No such file") as caught:
        await UNIX.listen(url)
    assert url in str(caught.value)
    with pytest.raises(ConnectionLost, match=r"No such file.*is anything listening there"):
        await UNIX.connect(url)


async def test_a_full_queue_refuses_instead_of_pretending(tmp_path: Path) -> None:
    """The system says "try again" and begins nothing; waiting for the socket would return at once, unconnected."""

    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        streams: list[ByteStream] = []

        async def fill() -> None:
            while True:
                streams.append(await UNIX.connect(f"unix://{path}"))

        with pytest.raises(ConnectionLost, match="temporarily unavailable"):
            await fill()
        with pytest.raises(OSError, match="in use"):  # and who wants to listen there is not made to wait
            await UNIX.listen(f"unix://{path}")
        for stream in streams:
            assert stream.try_send([b"x"]) == 1
            stream.close()


async def test_who_the_peer_is(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/s"
    listener = await UNIX.listen(url)
    near = await UNIX.connect(url)
    far = await listener.accept()
    assert (near.peer, far.peer, near.tcp_facts()) == (url, f"a client of {url}", {})
    for closable in (near, far, listener):
        closable.close()
