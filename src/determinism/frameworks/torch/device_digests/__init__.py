"""Digests of tensors on a GPU, made there: queued behind the op that wrote them, and fetched later, many at once."""
