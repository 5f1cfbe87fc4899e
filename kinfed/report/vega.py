"""Charts as Vega-Lite panels: one renderer for the page, notebooks and files. The one file that imports vl-convert."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from kinfed.errors import ConfigError
from kinfed.files import write_bytes

Spec = dict[str, object]
Rows = Sequence[dict[str, object]]
VERSION = "6.4"  # of Vega-Lite
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # a name, never fetched
FAINT = "#8b929a"
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
DASHES = ([1, 0], [7, 4], [2, 4], [10, 3, 2, 3])
BESIDE = 130  # pixels at most for a name beside a curve
PADDING = 10  # pixels around a chart
WIDER = 45  # at its right in an SVG: the font that shows a legend may be wider than the one that it was measured in
# Methods have Okabe and Ito's colours, clusters Paul Tol's muted ones: both differ under colour-blindness, and no
# cluster has a method's colour. Black and yellow are toned down; for dark pages both are lighter.
COLOURS = {
    "light": ["#0072b2", "#d55e00", "#009e73", "#b8568f", "#c98500", "#3a9bd9", "#4d4d4d", "#a89a00"],
    "dark": ["#4aa3df", "#ee8130", "#2cc295", "#db8fbd", "#eab03a", "#8fd0f5", "#b9bdc1", "#e6d94a"],
}
MORE_COLOURS = ["#332288", "#882255", "#cc6677", "#117733", "#88ccee", "#ddcc77"]  # Tol's, where eight are too few
CLUSTER_COLOURS = {
    "light": ["#332288", "#44aa99", "#cc6677", "#999933", "#88ccee", "#882255", "#117733", "#ddcc77"],
    "dark": ["#8f7fe8", "#55c4b0", "#e58795", "#b9b94e", "#a5dcf7", "#c6598c", "#3fa863", "#efe09a"],
}
CLUSTERS = "diverging"  # the name under which a theme has the clusters' colours, and
DISTANCES = "ramp"  # those of distances: far and near unrelated pairs, far and near related ones


def make_theme(name: str, ink: str, muted: str, grid: str, ramp: Sequence[str], distances: Sequence[str]) -> Spec:
    """Vega-Lite's config for these colours."""
    colours: Spec = {"category": COLOURS[name], CLUSTERS: CLUSTER_COLOURS[name]}
    words: Spec = {"labelColor": muted, "titleColor": muted, "labelFontSize": 12, "titleFontSize": 12}
    heading: Spec = {"anchor": "start", "color": ink, "subtitleColor": muted, "fontSize": 13, "subtitleFontSize": 12}
    return {
        "background": "transparent",
        "font": "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
        "view": {"stroke": None},
        "axis": words | {"titleFontWeight": "normal", "gridColor": grid, "domainColor": FAINT, "tickColor": FAINT},
        "legend": words | {"titleFontWeight": "normal", "labelLimit": 280, "titleLimit": 420},
        "title": heading | {"fontWeight": 600},
        "text": {"color": ink},
        "rule": {"color": ink},
        "range": colours | {"heatmap": list(ramp), DISTANCES: list(distances)},
    }


THEMES = {
    "light": make_theme(
        "light", "#1d2125", "#5c646d", "#ecede8", ("#f1f3f4", "#0b4f7d"), ("#f4f4f1", "#c3c6c4", "#9fc6e0", "#0b4f7d")
    ),
    "dark": make_theme(
        "dark", "#e7e8e4", "#a3abb3", "#262b30", ("#20262b", "#8fd0f5"), ("#1c2125", "#4a5157", "#2f6d97", "#a9dcfa")
    ),
}


@dataclass(frozen=True)
class Chart:
    """Vega-Lite panels over named tables; shows itself in a notebook and saves itself as PNG or SVG."""

    panels: tuple[Spec, ...] = field(repr=False)
    tables: dict[str, Rows] = field(repr=False)
    data: object = field(repr=False, default=None)  # the numbers that it shows
    stacked: bool = False  # panels below each other instead of side by side

    def to_dict(self) -> Spec:
        """The whole chart as one Vega-Lite specification, in light colours."""
        own: Spec = {"scale": {"color": "independent", "shape": "independent"}}  # a panel's clusters are its own
        whole: Spec = {"vconcat" if self.stacked else "hconcat": list(self.panels), "spacing": 12, "resolve": own}
        body = self.panels[0] if len(self.panels) == 1 else whole
        theme = THEMES["light"] | {"background": "white"}
        return {"$schema": SCHEMA, **body, "datasets": self.tables, "config": theme, "padding": PADDING}

    def for_page(self) -> Spec:
        """The panels for a page, which sizes them by its width."""
        return {"tables": self.tables, "panels": list(self.panels)}

    def save(self, path: Path | str) -> None:
        """Writes a .png or .svg file."""
        path = Path(path)
        if path.suffix == ".svg":
            write_bytes(path, self._repr_svg_().encode())
        elif path.suffix == ".png":
            write_bytes(path, load_renderer().vegalite_to_png(self.to_dict(), VERSION, scale=2))
        else:
            raise ConfigError(f"a chart is saved as .png or .svg, got '{path.name}'")

    def _repr_svg_(self) -> str:
        """The picture that a notebook shows."""
        sides = dict.fromkeys(("left", "top", "bottom"), PADDING) | {"right": WIDER}
        svg: str = load_renderer().vegalite_to_svg(self.to_dict() | {"padding": sides}, VERSION)
        return svg


def load_renderer() -> ModuleType:
    """vl-convert, or one line that says what to install."""
    try:
        import vl_convert
    except ImportError:
        raise ConfigError("charts need the package vl-convert-python: pip install 'kinfed[report]'") from None
    return vl_convert


def bundle_scripts() -> str:
    """Vega, Vega-Lite and vega-embed as one script that needs no network."""
    bundle: str = load_renderer().javascript_bundle(vl_version=VERSION)
    return bundle.replace("</script", "<\\/script")


def number(field: str, **options: object) -> Spec:
    """A channel of numbers."""
    return {"field": field, "type": "quantitative", **options}


def show(**titles: str) -> list[Spec]:
    """The fields that pointing at a mark shows, with their titles."""
    return [{"field": name, "type": "nominal", "title": title} for name, title in titles.items()]


def mark_line(at: Spec, dash: Sequence[int]) -> Spec:
    """A line across a chart."""
    rule: Spec = {"type": "rule", "strokeWidth": 1.4, "strokeDash": list(dash)}
    return {"data": {"values": [{}]}, "mark": rule, "encoding": at}


def digits(value: float) -> float:
    """Five significant digits, which is more than a screen shows."""
    return float(f"{value:.5g}")
