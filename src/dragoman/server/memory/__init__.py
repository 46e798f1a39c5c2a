"""What makes a server remember: requests that build on earlier ones, runs that are recorded, and
the ways to read, replay, stop and forget them.

It stands between a wire and an engine, and works for any of both. What is kept, and where, is the
store's business.
"""
