"""`headstart serve --workers N`: several gateway processes behind one port.

    supervisor ── binds the data port, serves the admin port, starts the embedded replica
     │  one socket pair each: orders down, reports up (`messages`, `channel`)
     ├─ worker-0 ─┐
     ├─ worker-1 ─┼─ take connections from the port (`gateway.acceptor`), keep records themselves
     └─ …        ─┘

Requests never pass through the supervisor, and workers know nothing of each other but the figures
in `memory`. A worker that ends is replaced; if the supervisor ends, its workers drain and end.
"""
