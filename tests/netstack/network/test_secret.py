"""Secrets: where they come from, and that nothing shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from netstack.base.errors import ConfigError
from netstack.network.connection.authentication import MAX_SECRET_BYTES, Secret

SECRET = Secret(b"a secret of all who belong")


def test_a_secret_is_never_shown() -> None:
    assert "secret of all" not in f"{SECRET} {SECRET!r} {[SECRET]}"
    assert repr(SECRET) == "Secret(...)"


def test_generated_secrets_differ_and_survive_a_file(tmp_path: Path) -> None:
    one, other = Secret.generate(), Secret.generate()
    assert one.reveal() != other.reveal()
    assert len(one.reveal()) >= 32
    path = tmp_path / "secret"
    path.write_bytes(one.reveal() + b"\n")
    path.chmod(0o600)
    assert Secret.from_file(path).reveal() == one.reveal()


def test_one_newline_at_the_end_is_not_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o400)
    path.chmod(0o600)
    path.write_bytes(b" sixteen bytes.. \n\n")
    assert Secret.from_file(str(path)).reveal() == b" sixteen bytes.. \n"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610, 0o644, 0o777])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"x" * 32)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"other users \(mode {mode:04o}\); run: chmod 600 {path}"):
        Secret.from_file(path)


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"", "holds 0 bytes"), (b"x" * 15 + b"\n", "holds 15 bytes"), (b"x" * 5000, "more than 4096")],
)
def test_a_file_without_a_secret_is_refused(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=text):
        Secret.from_file(path)


def test_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "secret", 0o600)
    with pytest.raises(ConfigError, match="is not a regular file"):
        Secret.from_file(tmp_path / "secret")
    with pytest.raises(ConfigError, match="not a regular"):
        Secret.from_file("/dev/zero")


@pytest.mark.parametrize("content", [bytes(32), b"\xff" * 4096, b"ab" * 20, b"1234567" * 5])
def test_what_is_no_random_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="kinds, which can be guessed"):
        Secret.from_file(path)


@pytest.mark.root
def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_bytes(Secret.generate().reveal())
    path.chmod(0o600)
    os.chown(path, 12345, -1)
    with pytest.raises(ConfigError, match=f"belongs to user 12345, who can change it; run: chown {os.geteuid()}"):
        Secret.from_file(path)


def test_the_longest_file_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(bytes(range(32, 64)) * (MAX_SECRET_BYTES // 32) + b"\n")
    path.chmod(0o600)
    assert len(Secret.from_file(path).reveal()) == MAX_SECRET_BYTES


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path / name} cannot be read"):
        Secret.from_file(tmp_path / name)


def test_a_short_secret_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError, match=r"9 bytes .* give 16") as caught:
        Secret(b"qwertyuio")
    assert "qwerty" not in str(caught.value)
