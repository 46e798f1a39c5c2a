"""The way out: every socket Dragoman opens is opened in this package.

`http` is the client that engines use, `guard` the door for addresses that a client gave us.
What the bytes mean is for the layers above.
"""
