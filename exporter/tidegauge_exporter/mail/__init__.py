"""Mail to the owners of jobs: its texts, its form, and how it is sent. When it is sent is decided in ``notify``."""
