"""What people and programs read of a comparison: the terminal report and the JSON document."""
