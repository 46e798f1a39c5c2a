"""Things that answer: each module here is an engine, or takes an engine and is one.

An engine turns a request into events. It knows no client, no server and no protocol of ours in
front of it; whoever wraps one wraps all.
"""
