"""One module per change of the tables, never edited once released: ``NNNN_what.py``."""
