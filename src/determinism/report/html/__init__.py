"""The report as one HTML file: no script, nothing loaded from elsewhere, every string from outside escaped."""
