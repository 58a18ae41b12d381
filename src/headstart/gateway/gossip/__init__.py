"""Gateway processes tell each other what they dispatched and what came back, over ZeroMQ.

    worker-0 ─┐ ipc, each to each        ┌─ worker-0
    worker-1 ─┼──────── relay ══ tcp ══ relay ─┼─ worker-1        several workers on two hosts
              └ of the supervisor   of the supervisor ┘

    gateway ══════════════ tcp ══════════════ gateway          one process each

`mesh` is a process's part in it, `relay` the supervisor's; `links` says who binds and who connects.
What is said is made and understood in `routing.gossip`, its form is `wire.gossip`.
"""
