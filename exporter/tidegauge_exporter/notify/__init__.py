"""What people and other tools are told of incidents, and when. How it looks on Slack or in Grafana is beside this."""
