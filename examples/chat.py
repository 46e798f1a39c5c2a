"""A chat on the terminal that streams the answer to each line.

python examples/chat.py                             # the demo engine: no model needed
python examples/chat.py http://127.0.0.1:11434/v1   # any OpenAI-compatible server
"""

import sys

import dragoman

target = sys.argv[1] if len(sys.argv) > 1 else "script"
conversation: list[dragoman.Item] = []

with dragoman.connect_sync(target) as client:
    for line in sys.stdin:
        conversation.append(dragoman.Message("user", line.strip()))
        with client.stream(conversation, instructions="Be brief.") as stream:
            for piece in stream.text:
                print(piece, end="", flush=True)
        print()
        conversation += stream.answer.output

# Asked to count to three, and then to two, it prints:
#     1, 2, 3.
#     1, 2.
