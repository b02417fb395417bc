"""What the page of `pippin explain` is given."""

from typing import TYPE_CHECKING, Any

from .explain_print import other_graph_note, walk_summary
from .explain_tables import HEADS_NOTE, why_chosen

if TYPE_CHECKING:
    from ..apps.insight.reading import Reading


def page_document(
    name: str | None,
    data: dict[str, Any],
    reading: "Reading | None",
    attention: dict[str, Any] | None,
) -> dict[str, Any]:
    """`data` as `--json` prints it, with the sentences and the arrays that the page shows."""
    from ..apps.insight.explanation import CAVEAT

    about = [name or "Computed without a model"]
    if "backend" in data:
        about.append(f"on {data['backend']}")
    page: dict[str, Any] = {"caveat": CAVEAT}
    if reading is not None:
        about.append(f"{len(reading.tokens):,} tokens")
        page |= {
            "tokens": [token.text for token in reading.tokens],
            "prompt_tokens": reading.prompt_tokens,
            "attention": attention,
        }
        if reading.walk is not None:
            notes = [walk_summary(reading.walk), other_graph_note(reading)]
            steps = zip(data["walkthrough"]["steps"], reading.walk.steps, strict=True)
            seed = f"seed {reading.walk.params.seed}"
            page["walkthrough"] = {
                "note": " ".join(filter(None, notes)),
                "steps": [step | {"why": why_chosen(found, seed)} for step, found in steps],
            }
    if "heads" in data:
        page["heads"] = {"note": HEADS_NOTE, "kinds": data["heads"]}
    return page | {"about": ", ".join(about) + "."}
