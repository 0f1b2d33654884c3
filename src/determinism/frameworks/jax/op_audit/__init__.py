"""The audit of JAX's ops: cases that provoke, and counting what comes out."""
