"""What an op may be called: one key for the names by which the same op is reached."""

from __future__ import annotations

_PREFIXES = (
    ("torch.ops.aten.", "aten."),
    ("aten::", "aten."),
    ("torch.nn.functional.", "torch."),
    ("torch.nn.", "torch."),
    ("torch.Tensor.", "torch."),
    ("Tensor.", "torch."),
    ("torch.", "torch."),
    ("nn.functional.", "torch."),
    ("nn.", "torch."),
    ("F.", "torch."),
    ("tensorflow.", "tf."),
    ("keras.", "tf.keras."),
)
"""Spellings of the same place; the first that fits counts."""


def key_of(name: str) -> str:
    """The key under which a name is looked up.

    `torch.Tensor.scatter_add_`, `torch.scatter_add` and `aten::scatter_add_.default` have the same one, and so have
    `torch.nn.CTCLoss` and `torch.nn.functional.ctc_loss`.
    """
    text = name.strip().strip("`'\"").strip()
    if text.endswith(")"):
        text = text.partition("(")[0]
    for spelling, place in _PREFIXES:
        if text.startswith(spelling):
            text = place + text[len(spelling) :]
            break
    if text.startswith("aten."):
        # What follows the op's name is the overload.
        text = "torch." + text[len("aten.") :].partition(".")[0]
    text = text.replace("tf.compat.v1.", "tf.").replace("tf.compat.v2.", "tf.")
    return text.lower().replace("_", "")


def last_part(key: str) -> str:
    """The key without the place where the op lies."""
    return key.rpartition(".")[2]
