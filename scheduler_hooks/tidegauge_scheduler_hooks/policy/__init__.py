"""The policy decides what is done about an incident: rules, ladders, brakes. Pure but for reading files."""
