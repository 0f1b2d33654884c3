"""What is known to be deterministic: statuses of ops by framework, version, device and direction, as data, and queries over them."""
