"""What is to be done about an incident: rules, ladders, brakes. Pure: nothing here does anything."""
