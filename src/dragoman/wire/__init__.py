"""Protocols as bytes, in both directions.

Each wire is a folder of the same rooms: `request` (how one asks), `response` (how one answers,
whole and streamed), `types`. No wire imports another, none opens a socket or reads a clock.
"""
