"""Engines, which turn requests into events, and middleware, which wraps an engine and is one.

An engine knows no client, no server and no protocol of ours in front of it.
"""
