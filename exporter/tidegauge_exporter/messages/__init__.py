"""What messages say, and the port to a chat. Knows no transport."""
