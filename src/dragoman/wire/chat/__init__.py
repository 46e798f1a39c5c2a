"""Chat Completions: `POST /chat/completions`, whole and streamed, heard and told."""
