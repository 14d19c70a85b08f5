"""The official client behind ``kubernetes.ports``: requests, watches, leader election. Nothing else imports it."""
