"""The conversation model: items, requests, events and responses, and the order of events.

The core is pure: no await, no socket, no file, no clock, no randomness. It has no protocol's
field names and no providers.
"""
