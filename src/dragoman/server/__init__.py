"""Puts a protocol in front of an engine: the ASGI application, its host, and its settings.

It knows HTTP, clocks and clients that misbehave. What a request or an answer means it leaves to
the wires, and who answers is the engine's affair.
"""
