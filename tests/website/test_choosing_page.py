"""The guide's tables say what was measured."""

from kinfed.methods import METHODS
from website.choosing_page import PAGE, as_table, given, row, with_tables, word
from website.measured import Tables, read_tables

MEASURED = Tables(
    kinds=["disjoint", "shared", "swapped", "rotated", "style"],
    expected={},
    recovery={"flt": ["1.00", "0.68 (0.58) ≠", "0.00", "-0.03 (-0.04)", "0.90 (0.80)"], "local": ["–"] * 5},
    given={"flt": "nothing of the clusters; the encoder is trained on the server's samples"},
    roles_head=["method", "late", "holdout", "unlabelled"],
    roles={"flt": [["`flt`", "yes", "yes", "yes"]], "local": [["`local`", "yes, 100% untrained", "yes", "no"]]},
)


def test_words_follow_the_measurement():
    assert [word(ari) for ari in (1.0, 0.9, 0.89, 0.3, 0.29, -0.1)] == ["**yes**"] * 2 + ["partly"] * 2 + ["no"] * 2


def test_a_row_says_what_a_method_sees_is_given_serves_and_costs():
    link = "[FLT](reference/methods/flt.md)"
    seen = ["**yes**", "partly", "no", "no", "**yes**"]
    once = "M·(encoder\N{NO-BREAK SPACE}+ signature)"
    assert row("flt", MEASURED) == [link, *seen, "nothing", "yes", "yes", once, "2·n·w"]
    assert row("local", MEASURED)[1:] == [*["–"] * 6, "yes, 100% untrained", "no", "–", "0"]
    assert given("local", MEASURED) == "–"


def test_a_table_has_a_head_a_rule_and_rows():
    assert as_table([["a", "b"], ["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_the_page_has_every_method_as_it_was_measured_last():
    page = PAGE.read_text()
    assert page == with_tables(page, read_tables()), "renew it with: python -m website.choosing_page"
    assert all(f"(reference/methods/{name}.md)" in page for name in METHODS)
