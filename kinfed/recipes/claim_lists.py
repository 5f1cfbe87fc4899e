"""All claims of a paper in one list: which hold, which do not, and which have not been run."""

from collections import Counter
from collections.abc import Sequence

from kinfed.progress import as_markdown
from kinfed.recipes.outcome import FAILS, HOLDS, UNKNOWN, Outcome

VERDICTS = (HOLDS, FAILS, UNKNOWN)


def count_verdicts(outcome: Outcome) -> dict[str, Counter[str]]:
    """How often each claim of a table or figure holds, over its columns and protocols."""
    found: dict[str, Counter[str]] = {}
    for claim, _, _, verdict in outcome.claims():
        found.setdefault(claim.says, Counter())[verdict] += 1
    return found


def list_checks(outcomes: Sequence[Outcome]) -> str:
    """A sentence with the sums, and a row for each claim: in how many columns and protocols it holds."""
    counts = [(o.recipe.name, says, verdicts) for o in outcomes for says, verdicts in count_verdicts(o).items()]
    total = sum((verdicts for _, _, verdicts in counts), Counter[str]())
    head = [["claim", "where", *VERDICTS]]
    rows = [[says, name, *(str(verdicts[v] or "") for v in VERDICTS)] for name, says, verdicts in counts]
    ran = sum(bool(verdicts[HOLDS] + verdicts[FAILS]) for _, _, verdicts in counts)
    never = sum(bool(verdicts[FAILS]) and not verdicts[HOLDS] for _, _, verdicts in counts)
    said = (
        f"{len(counts)} claims, of which {ran} were looked at; {never} of these hold nowhere. A claim is checked in "
        f"each column and under each protocol that it speaks of: {total[HOLDS]} checks hold, {total[FAILS]} do not, "
        f"{total[UNKNOWN]} were not run."
    )
    return f"{said}\n\n{as_markdown(head + rows)}"
