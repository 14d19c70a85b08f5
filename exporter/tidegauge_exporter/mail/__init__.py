"""Mail to the owners of jobs: texts, MIME and SMTP. ``notify`` decides when a mail is sent."""
