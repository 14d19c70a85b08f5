"""What grew between two snapshots, by the line that allocated it, and forms for other tools."""
