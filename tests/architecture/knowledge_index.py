"""Writes the index of what is known of ops beside the data: `make docs`."""

from __future__ import annotations

from determinism.knowledge.index import INDEX_FILE, index_text

if __name__ == "__main__":
    INDEX_FILE.write_text(index_text(), encoding="utf-8")
