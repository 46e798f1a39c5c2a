"""Responses over WebSocket: many turns on one connection, which remembers what it has seen.

The same path, the same requests and the same events as over HTTP; a frame holds one of them. What
an answer is, is no business of these rooms.
"""
