"""The way out: every socket Dragoman opens is opened in this package.

`client` is the client that engines use, `dial` judges addresses that others gave us. What the
bytes mean is for the layers above.
"""
