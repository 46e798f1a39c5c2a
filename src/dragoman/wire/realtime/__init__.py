"""The Realtime protocol: sessions over a WebSocket, in OpenAI's GA dialect and in the beta one.

Requests of other wires ask for one answer; here commands and events pass at any time, so that this
wire offers a codec for `core.session_values` in place of a `Wire`.
"""

PATH = "/realtime"
"""The path, behind the base, that speaks it."""
SECRETS_PATH = "/realtime/client_secrets"
"""The path that gives keys for one session each."""
CALLS_PATH = "/realtime/calls"
"""The path that answers the offers of WebRTC."""
SUBPROTOCOL = "realtime"
"""The WebSocket subprotocol; browsers, which can send no header, give their key in another one."""
KEY_SUBPROTOCOL = "openai-insecure-api-key."
"""What the subprotocol begins with whose rest is a browser's key."""
BETA_HEADER = b"openai-beta"
"""The header that asks for the beta dialect, with `realtime=v1` in its value."""
BETA_SUBPROTOCOL = "openai-beta.realtime-v1"
"""The same for browsers."""
