"""Reports of a comparison for people and programs: the terminal report, the JSON document, and the formats made from it."""
