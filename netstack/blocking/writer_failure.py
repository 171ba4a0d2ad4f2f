"""What a writer that failed tells its caller: the failure itself once, afterwards what that means.

Takes: the failure. Gives: errors to raise.
"""

from __future__ import annotations

from typing import NoReturn, final

from ..errors import LocalProtocolError


@final
class WriterFailure:
    """Of the writer of one partition."""

    def __init__(self, partition_id: str) -> None:
        self._partition_id = partition_id
        self._was_told = False

    def tell(self, error: BaseException, *, unwritten_records: int, is_finished: bool) -> NoReturn:
        """Raises what a call of the writer has to say.

        Args:
            error: what failed.
            unwritten_records: that the writer had taken.
            is_finished: whether the caller has finished the partition, so that nothing more is written anyway.

        Raises:
            BaseException: the failure, at the first call or of a finished partition.
            LocalProtocolError: at later ones.
        """
        if is_finished:
            raise error
        lost = f"{unwritten_records} records that its writer had taken were not written"
        if not self._was_told:
            self._was_told = True
            error.add_note(f"partition {self._partition_id!r}: {lost}")
            raise error
        raise LocalProtocolError(
            f"nothing can be written to partition {self._partition_id!r} any more, since its writer failed; {lost}"
        ) from error
