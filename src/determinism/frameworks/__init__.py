"""One folder per framework, with the same file names; none imports another, and nothing outside imports them by name."""
