"""An hour of everything against a real server; fails on a wrong text, a hang or a leak.

    python -m tools.soak --minutes 60 [-- flags of serve]

The answers are asked once from a quiet server. Then clients of every kind ask for them again, some
of which leave, read slowly or send nonsense, while engines are killed, stopped, put to sleep and
reloaded, and the server is ended and started anew. At the end gates are held against what was
seen: `gates.py` has them, as functions of plain figures.
"""
