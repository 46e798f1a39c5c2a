"""Outgoing connections: every socket that Dragoman opens is opened in this package.

`client` is the HTTP client of engines; `dial` has the guard for untrusted addresses. The
meaning of bodies is for the layers above.
"""
