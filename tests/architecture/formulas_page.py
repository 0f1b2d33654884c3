"""Write the audited ops of each version of PyTorch into `docs/formulas.md`: `make docs`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from determinism.frameworks.torch.ops import DATA

PAGE = Path(__file__).parents[2] / "docs" / "formulas.md"
MARK = "<!-- From here on written by `make docs`. -->\n"
GROUPS = {
    "node": "Autograd nodes",
    "conjugation_inside": "Ops whose own ops miss lazy conjugation",
    "autocast_inside": "Ops whose own ops miss autocast",
    "forward_mode": "Forward-mode derivatives",
    "composite": "Composites",
}


def section(audit: dict[str, Any]) -> str:
    """The findings of one audit."""
    lines = [
        f"\n## PyTorch {audit['torch']}, {audit['device'].upper()}\n",
        f"{audit['cases']} cases with {', '.join(audit['dtypes'])}.\n",
    ]
    for key, title in GROUPS.items():
        if audit[key]:
            lines += [f"| {title} | differs |", "|---|---|"]
            lines += [f"| `{one['name']}` | {', '.join(one['differs'])} |" for one in audit[key]]
            lines.append("")
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with the tables as they should be."""
    audits = tomllib.loads(DATA.read_text(encoding="utf-8"))["audit"]
    return page.partition(MARK)[0] + MARK + "".join(section(audit) for audit in reversed(audits))


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
