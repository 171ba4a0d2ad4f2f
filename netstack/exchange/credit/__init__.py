"""Credit: a sender sends a data buffer only if the receiver has reserved one for it.

Why: many channels share a connection. Without credit, one that is not read fills the socket, and all others wait behind
it (`uncredited` keeps that model for comparison). With credit every data buffer that arrives finds a free buffer, so
the connection's reader never waits for one channel.

**The unit** is one network buffer. A data buffer costs one credit whatever its length. Events cost none. Per channel:

    receiver                                              sender
    exclusive buffers  -- OPEN: initial credit -------->  available = initial
    free buffers       -- CREDIT: announcement -------->  grant: available += n
    one buffer less    <------------- data, backlog ----  spend: available -= 1
    buffer consumed: it is free again, and announced later

**What always holds** (`netstack.testing.ledger` checks it after each step of the laws):

    sender:    granted = spent + available, and available >= 0
    receiver:  announced = used + in flight
               (in flight: available at the sender, announcements and data under way)
    receiver:  free buffers = in flight + unannounced
    both:      announced - granted = announcements under way;  spent - used = data under way

So no buffer is promised twice, and none is lost. Each side checks its own half: `SendCredit` raises before its credit
falls below zero or rises above 2^31, and `BufferManager` asserts the sum of free buffers whenever it reserves one. A
channel fails with CREDIT_VIOLATION if data arrives and no buffer is free; a producer that is only ahead of an
announcement takes a buffer that is reserved for it anyway. Credit that becomes void is void at both sides: only a
channel without exclusive buffers that is blocked by a barrier gives its buffers up, and both sides `forget` at the
barrier and its resume.

**Where free buffers come from.** A channel has exclusive buffers, its initial credit. Each data buffer announces the
backlog behind it; the channel keeps backlog + exclusive free buffers, and takes floating buffers of its gate's pool
for that. Channels that get none wait in the order of asking. Consumed floating buffers return to the pool.

**When credit is announced.** An announcement wakes the sender, which costs as much as sending 100 KiB. So credit is
announced when more is unannounced than the sender has left (`ReceiveCredit`), and all channels of a connection share a
frame.

**Two additions that Flink does not have.** A sender that ran out of credit has little backlog to announce, because its
writer is blocked; it announces what it expects to send (`boost`), so that its window stays open. And a gate whose
reader waits for data borrows spare floating buffers while nobody else needs them (`spare`).

| module | side | contains |
|---|---|---|
| `sending` | sender | `SendCredit`, the counters of one channel |
| `boost` | sender | expected buffers, and credit that returns unused |
| `receiving` | receiver | `ReceiveCredit`, the counters, and `BufferManager`, the buffers behind them |
| `spare` | receiver | more floating buffers for a gate that waits |
| `uncredited` | receiver | the model without credit |

`outbound.sender` decides with `SendCredit` which channel sends next; `inbound.channel` receives with a `BufferManager`;
`inbound.receiver` writes the announcements.
"""
