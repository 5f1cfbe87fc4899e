"""The picture of README and landing page shows what the demo measures."""

import re
from pathlib import Path
from xml.etree import ElementTree

from website.problem_picture import BAR, BASE, PICTURE, TALL, Served, draw, place_clients

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


def test_each_client_has_a_bar_as_high_as_its_accuracy_in_the_colour_of_its_model():
    one = Served("One", [0.5, 1.0, 0.25, 0.25], [0, 0, 0, 0])
    two = Served("Two <models>", [0.75, 1.0, 1.0, 1.0], [1, 1, 0, 0])
    left, right = ElementTree.fromstring(draw([one, two], [0, 0, 1, 1], [[2, 6], [1, 4]])).findall(f"{SVG}g")
    bars = {
        side: [b for b in side if b.get("width") == str(BAR) and b.get("fill") != "#eef0f1"] for side in (left, right)
    }
    assert [float(bar.get("height", "")) / TALL for bar in bars[left]] == [0.5, 1.0, 0.25, 0.25]
    assert all(float(bar.get("y", "")) + float(bar.get("height", "")) == BASE for bar in bars[left] + bars[right])
    colours = [bar.get("fill") for bar in bars[right]]
    assert len({bar.get("fill") for bar in bars[left]}) == 1
    assert colours[0] == colours[1] != colours[2] == colours[3]
    assert [text.text for text in left.iter(f"{SVG}text")][:2] == ["One", "50 % on average, worst client 25 %"]


def test_clients_of_a_cluster_stand_together_in_whatever_order_they_come():
    assert sorted(place_clients([0, 1, 0, 1])) == place_clients([0, 0, 1, 1])


def test_the_kept_picture_has_the_numbers_of_the_demo_and_stands_on_the_front_pages():
    table = (DOCS / "index.md").read_text()
    means = [float(re.search(rf"^{name} +([\d.]+)", table, re.M)[1]) for name in ("FedAvg", "FLT")]  # type: ignore[index]
    shown = re.findall(r"(\d+) % on average, worst", PICTURE.read_text())
    assert [int(number) for number in shown] == [round(mean) for mean in means], "python -m website.problem_picture"
    assert "](problem.svg)" in table and "](docs/problem.svg)" in (DOCS.parent / "README.md").read_text()
