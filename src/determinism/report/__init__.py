"""What people and programs read of a comparison: the terminal report, the JSON document, and what is made from that."""
