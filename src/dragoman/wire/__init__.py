"""Protocols as bytes, in both directions.

Each wire is a folder with the same doors: how one asks and how one answers, heard and said, whole
and streamed; its `__init__` offers them as one `Wire`. No wire imports another, none opens a socket
or reads a clock. What they share stands beside them: framing, JSON, errors, what is lost between.
"""
