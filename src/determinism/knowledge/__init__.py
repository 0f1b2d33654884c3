"""Knowledge about determinism: statuses of ops by framework, version, device and direction, as data, and queries over them."""
