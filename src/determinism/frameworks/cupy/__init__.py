"""What the project does with CuPy: seeds it, and keeps its arrays."""
