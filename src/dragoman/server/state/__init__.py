"""What the server remembers of requests and answers, and the endpoints that show it."""
