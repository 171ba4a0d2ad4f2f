"""What a session sends again: all that the peer has not got, and nothing that it has, whatever positions it tells."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import RemoteProtocolError
from netstack.exchange.wire.session import MERGED_BYTES, SentBytes, Session


@given(
    st.lists(
        st.tuples(st.sampled_from(["send", "tell", "tell an old one"]), st.integers(0, 3 * MERGED_BYTES)), max_size=30
    )
)
def test_what_is_sent_again_is_what_the_peer_lacks(steps: list[tuple[str, int]]) -> None:
    sent, stream, reported = SentBytes(), b"", 0
    for what, number in steps:
        if what == "send":
            piece = bytes([len(stream) % 251]) * number
            sent.keep([piece, b"not taken"], number)
            stream += piece
        else:
            position = (
                number % (reported + 1)
                if what == "tell an old one"
                else reported + number % (len(stream) - reported + 1)
            )
            sent.acknowledge(position)
            reported = max(reported, position)
        assert b"".join(sent.rest()) == stream[reported:]
        assert sent.kept_bytes == len(stream) - reported


@pytest.mark.parametrize(("position", "is_possible"), [(3, False), (4, True), (10, True), (11, False)])
def test_a_peer_goes_on_between_what_it_told_and_what_was_sent(position: int, is_possible: bool) -> None:
    session = Session(offer=b"x" * 16, grace_s=1.0)
    session.sent.keep([b"0123456789"], 10)
    session.acknowledge(4)
    if is_possible:
        assert b"".join(session.go_on(position)) == b"0123456789"[position:]
        assert session.resent_bytes == 10 - position
    else:
        with pytest.raises(RemoteProtocolError, match=f"position {position}, but 10 bytes were sent"):
            session.go_on(position)
