"""Makes memory profiles of recorded snapshots. Pure: no file is read here."""
