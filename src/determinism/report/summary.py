"""The verdict of a document in one sentence."""

from __future__ import annotations

from typing import Any


def summary(document: dict[str, Any]) -> str:
    """The headline; of documents that have none yet, what can be said from the rest."""
    if document["headline"]:
        return str(document["headline"])
    first = document["first_divergence"]
    match document["verdict"]:
        case "same":
            return f"Same: {document['recorded']['records']:,} records were bit-identical"
        case "different" if first is not None:
            return f"Different: the runs depart from each other at step {first['step']}, in {first['op']}"
        case "different":
            return "Different: the runs are not bit-identical"
        case _:
            messages = [trouble["message"] for trouble in document["trouble"]]
            return f"Inconclusive: {' '.join(messages) or 'the runs could not be compared'}"
