"""What a person does about each alert: texts, and the page of them that the service shows."""
