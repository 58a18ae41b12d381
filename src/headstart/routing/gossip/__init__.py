"""What gateway processes know of each other's dispatches: said, heard, forgotten. No sockets.

    router ──> Outbox ──> GossipBatch ──(wire.gossip, some carrier)──> RemoteLedger  load
                                                                  └──> RemoteIndex   prefixes

The gateway carries batches over ZeroMQ (`gateway.gossip`); a simulator may carry them as it likes,
late, twice or not at all.
"""
