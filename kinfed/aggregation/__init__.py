"""How the models that clients trained become one: the weighted mean, or a rule that one liar cannot move at will."""

from kinfed.aggregation.aggregation import FEW, Aggregation, Mean, Sent, count_liars
from kinfed.aggregation.outliers import keep_one_of_each, measure_isolation
from kinfed.aggregation.robust_rules import (
    CentredClipping,
    GeometricMedian,
    Krum,
    Median,
    NormClipping,
    TrimmedMean,
    norms,
    weighted_median,
)

__all__ = [
    "AGGREGATIONS",
    "DEPLOYED",
    "FEW",
    "MEAN",
    "Aggregation",
    "CentredClipping",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "NormClipping",
    "Sent",
    "TrimmedMean",
    "count_liars",
    "keep_one_of_each",
    "measure_isolation",
    "norms",
    "weighted_median",
]

AGGREGATIONS: dict[str, type[Aggregation]] = {
    "mean": Mean,
    "norm_clipping": NormClipping,
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "geometric_median": GeometricMedian,
    "krum": Krum,
    "centred_clipping": CentredClipping,
}
MEAN = Mean()  # the default of simulation
DEPLOYED = NormClipping()  # the default of deployment
