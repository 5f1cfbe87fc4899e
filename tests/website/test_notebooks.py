"""The notebooks run, and were committed with what they show."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kinfed.signatures import Pretraining
from website.notebooks import notebook_page

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture
def quick_encoder(monkeypatch: pytest.MonkeyPatch):
    """FLT's encoder is hardly trained, which is most of the notebooks' time; `make notebooks` trains it."""
    trained = Pretraining.__call__
    hardly = partial(replace, epochs=1, least_steps=1)
    monkeypatch.setattr(Pretraining, "__call__", lambda self, *given: trained(hardly(self), *given))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(clients form )?no clear (groups|clusters)")  # by an encoder that is hardly trained
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.on_demand
def test_a_notebook_runs(path, quick_encoder, capsys: pytest.CaptureFixture[str]):
    names = {"__name__": "__main__"}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            code = "".join(line for line in cell["source"] if not line.startswith("%"))
            exec(compile(code.replace("[0, 1]", "[0]"), path.name, "exec"), names)  # one seed is enough here
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_its_pictures_and_is_small(path):
    page = notebook_page(path)
    assert len(page.pictures) >= 2 and all(f"]({name})" in page.markdown for name in page.pictures)
    assert path.stat().st_size < 200_000
    assert "Traceback" not in page.markdown


def test_a_page_has_texts_code_and_what_it_printed_and_drew(tmp_path: Path):
    drawn = {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": "<Figure>"}}
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {
            "cell_type": "code",
            "source": "# A curve\nplot()",
            "outputs": [{"output_type": "stream", "text": "1\n"}, {"output_type": "stream", "text": ["2\n"]}, drawn],
        },
    ]
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    page = notebook_page(path)
    assert page.pictures == {"small-1-1.png": b"hi"}
    assert page.markdown.endswith(
        "```python\n# A curve\nplot()\n```\n\n```text\n1\n2\n```\n\n![A curve](small-1-1.png)\n"
    )
