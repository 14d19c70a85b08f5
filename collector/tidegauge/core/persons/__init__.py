"""Users as subjects of data protection: pseudonyms, and whose data is forgotten."""
