"""What each alert means and what to do about it, as a page for browsers and as docs/runbooks.md.

Texts are tables (``job_alerts``, ``service_alerts``, ``sections``); only ``__main__`` does I/O.
"""
