"""What a person reads when the server is up: the models, the addresses, and lines to paste.

Pure text from plain values: it asks no server and prints nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class Row(Struct, frozen=True):
    """One line of the table: a model, where it is answered, and what is known of that place."""

    model: str
    source: str
    note: str = ""


MOST = 20
"""Models shown; the rest is counted."""


_PAGE = """\
Dragoman is ready at {url}

{table}

--- curl -----------------------------------------------------------------------
curl -N {url}/chat/completions -H "Content-Type: application/json"{shell_key} \\
  -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Hello!"}}]}}'

--- openai SDK -----------------------------------------------------------------
{import_os}from openai import OpenAI
client = OpenAI(base_url="{url}", api_key={key})
for event in client.responses.create(model="{model}", input="Hello!", stream=True):
    print(getattr(event, "delta", ""), end="", flush=True)

print()
hello = [{{"role": "user", "content": "Hello!"}}]
for chunk in client.chat.completions.create(model="{model}", messages=hello, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)

print()
--- Codex (~/.codex/config.toml) -----------------------------------------------
model = "{model}"
model_provider = "dragoman"
[model_providers.dragoman]
name = "Dragoman"
base_url = "{url}"
wire_api = "responses"
{env_key}
Ctrl-C stops."""


def welcome(
    base_url: str, rows: Sequence[Row], *, key_env: str | None = None, problem: str = ""
) -> str:
    """The whole text.

    `key_env` names the variable whose value clients must present; `problem` says why there is no
    listing.
    """
    return _PAGE.format(
        url=base_url,
        table=f"  {problem}\n  Any model's name is passed on." if problem else table(rows),
        model=rows[0].model if rows else "MODEL",
        import_os="import os\n" if key_env else "",
        key=f'os.environ["{key_env}"]' if key_env else '"none"',
        shell_key=f' -H "Authorization: Bearer ${key_env}"' if key_env else "",
        env_key=f'env_key = "{key_env}"\n' if key_env else "",
    )


def table(rows: Sequence[Row], *, most: int = MOST) -> str:
    """The models, in columns; beyond `most` they are only counted.

    >>> print(table([Row("m", "http://127.0.0.1:11434/v1", "ollama")]))
      MODEL  ANSWERED BY
      m      http://127.0.0.1:11434/v1  (ollama)
    """
    if not rows:
        return "  No models are listed; any name is passed through."
    width = max(5, *(len(row.model) for row in rows[:most]))
    lines = [f"  {'MODEL':<{width}}  ANSWERED BY"]
    for row in rows[:most]:
        note = f"  ({row.note})" if row.note else ""
        lines.append(f"  {row.model:<{width}}  {row.source}{note}")
    if len(rows) > most:
        lines.append(f"  … and {len(rows) - most} more: dragoman models")
    return "\n".join(lines)
