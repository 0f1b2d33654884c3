"""One folder per framework, with equal file names; none imports another, and nothing outside imports them by name."""
