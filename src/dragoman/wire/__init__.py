"""Decodes and encodes protocols: one folder per wire, each of which offers one `Wire`.

No wire imports another, opens a socket or reads a clock. What they share is beside them: framing,
JSON, errors, loss tables.
"""
