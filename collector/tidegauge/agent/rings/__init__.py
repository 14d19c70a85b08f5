"""Ring files and launch records in run directories: finds, checks and reads them."""
