"""The second phase of a two-phase operator: what it has prepared, until it is committed.

Takes: what `prepare_commit` gives at each checkpoint. Gives: lists of it to `commit`, once the checkpoint is complete.

Rules: what was prepared is in the checkpoint, so a restart commits it again: `commit` must be idempotent. What was
prepared for a checkpoint that was given up is committed with the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from ..errors import CheckpointError

if TYPE_CHECKING:
    from .operators import BoundOperator

AT_THE_END: Final = 0
"""Instead of the number of a checkpoint, in a job that takes none: commits when nothing of it can run again."""


@final
class Commits:
    """What one operator has prepared.

    Args:
        bound: the operator; one without `prepare_commit` never has anything.
    """

    __slots__ = ("_bound", "_prepared")

    def __init__(self, bound: BoundOperator) -> None:
        self._bound = bound
        self._prepared: list[tuple[int, Any]] = []

    async def prepare(self, checkpoint_id: int) -> None:
        """A checkpoint begins. Raises as the operator's `prepare_commit`; None has nothing to commit."""
        if self._bound.has("prepare_commit"):
            prepared = await self._bound.call("prepare_commit")
            if prepared is not None:
                self._prepared.append((checkpoint_id, prepared))

    def snapshot(self) -> list[Any]:
        """What is to be stored with the checkpoint."""
        return [prepared for _, prepared in self._prepared]

    async def complete(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: commits what was prepared up to it. Raises as the operator's `commit`."""
        due = [prepared for number, prepared in self._prepared if number <= checkpoint_id]
        if due:
            await self._bound.call("commit", due)
            self._prepared = [(number, prepared) for number, prepared in self._prepared if number > checkpoint_id]

    async def restore(self, prepared: list[Any]) -> None:
        """The task begins from a checkpoint that holds this: it may have been committed or not, so it is, again.

        Raises:
            CheckpointError: the operator has no `commit` any more. Others as the operator's `commit`.
        """
        if not prepared:
            return
        if not self._bound.has("commit"):
            raise CheckpointError(
                f"operator {self._bound.name!r} has {len(prepared)} prepared commits in the checkpoint, and no method"
                " commit: give it one, or begin from another checkpoint"
            )
        await self._bound.call("commit", prepared)
