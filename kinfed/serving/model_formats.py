"""Models for other programs: TorchScript and ONNX, with preprocessing and prediction inside.

A file takes samples as a client has them (bytes of an image, numbers, token ids) and gives the task's predictions:
probabilities of classes, or numbers. What is written is read back, and must give what the model gives.
"""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kinfed.data.arrays import SampleKind
from kinfed.errors import ConfigError, FileError, ModelError
from kinfed.files import write_atomically
from kinfed.models import Model
from kinfed.params import Params
from kinfed.registry import is_installed
from kinfed.runs.logs import write_text

SUFFIXES: dict[str, str] = {"torchscript": ".pt", "onnx": ".onnx"}
CARD = "models.json"
INPUT, OUTPUT = "samples", "predictions"
CLOSE = 1e-4  # largest difference of a prediction, of its size


class ServedModel(nn.Module):
    """A network between preprocessing and prediction."""

    def __init__(self, model: Model, params: Params) -> None:
        super().__init__()
        self.model = model
        self.network = model.build_module()
        self.network.load_state_dict(params, strict=False)  # counters of batch norm are not weights
        self.eval()

    def forward(self, samples: Tensor) -> Tensor:
        """The task's predictions for samples as in training."""
        return self.model.task.predict(self.network(self.model.inputs(samples)))


def require_format(form: str) -> None:
    """Raises for a format that is not known, or not installed."""
    if form not in SUFFIXES:
        raise ConfigError(f"--format must be one of {', '.join(SUFFIXES)}, got '{form}'")
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if form == "onnx" and not is_installed(name)]
    if missing:
        raise ConfigError(f"ONNX files need {', '.join(missing)}: pip install 'kinfed[onnx]', or --format torchscript")


def write_model(path: Path, model: Model, params: Params, kind: SampleKind, form: str) -> None:
    """Writes a model in this format; ModelError where it cannot be, or what was written gives other predictions."""
    require_format(form)
    served, samples = ServedModel(model, params), draw_samples(kind, 2)
    path.parent.mkdir(parents=True, exist_ok=True)

    def write(beside: Path) -> None:
        run = (write_onnx if form == "onnx" else write_torchscript)(beside, served, samples)
        for more in (samples, draw_samples(kind, 5)):  # another number of samples, too
            check_same(run(more), served(more))

    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # both exporters warn of themselves
            write_atomically(path, write)
    except (ModelError, FileError) as error:
        raise ModelError(f"the model cannot be written as {form}: {error}") from None
    except Exception as error:  # whatever an exporter raises for a layer that it does not know
        what = " ".join(str(error).split())[:300]
        raise ModelError(f"the model cannot be written as {form}: {type(error).__name__}: {what}") from error


def write_torchscript(path: Path, served: ServedModel, samples: Tensor) -> Callable[[Tensor], Tensor]:
    """Writes TorchScript; gives back what the file computes."""
    traced: Any = torch.jit.trace(served, samples, check_trace=False)
    path.write_bytes(traced.save_to_buffer())  # given a path, it would write down the file's name
    again: Callable[[Tensor], Tensor] = torch.jit.load(str(path))
    return again


def write_onnx(path: Path, served: ServedModel, samples: Tensor) -> Callable[[Tensor], Tensor]:
    """Writes ONNX, in one file; gives back what onnxruntime computes of it."""
    import onnxruntime

    torch.onnx.export(
        served, (samples,), str(path), input_names=[INPUT], output_names=[OUTPUT], dynamo=True, external_data=False,
        dynamic_shapes=({0: torch.export.Dim("n", min=1)},), verbose=False,
    )  # fmt: skip
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run([OUTPUT], {INPUT: x.numpy()})[0])


def draw_samples(kind: SampleKind, number: int) -> Tensor:
    """Samples of this kind to try a model on."""
    generator = torch.Generator().manual_seed(number)
    if kind.dtype == "uint8":
        return torch.randint(0, 256, (number, *kind.shape), generator=generator).to(torch.uint8)
    if kind.dtype == "int64":
        return torch.randint(0, max(kind.classes, 2), (number, *kind.shape), generator=generator)
    return torch.randn(number, *kind.shape, generator=generator)


def check_same(found: Tensor, wanted: Tensor) -> None:
    """Raises ModelError unless these are the same predictions."""
    if found.shape != wanted.shape:
        raise ModelError(f"it gives {list(found.shape)} in place of {list(wanted.shape)}")
    if not torch.allclose(found, wanted, rtol=CLOSE, atol=CLOSE):
        raise ModelError(f"its predictions differ by {float((found - wanted).abs().max()):.2g}")


def write_card(folder: Path, model: Model, kind: SampleKind, files: dict[str, object]) -> None:
    """Writes what another program must know of models: input, output, and which file is of which cluster."""
    names = model.task.has_classes()
    card = {
        "input": {"name": INPUT, "dtype": kind.dtype, "shape": ["n", *kind.shape]},
        "output": {"name": OUTPUT, "meaning": "probabilities of classes" if names else "the task's predictions"},
        "preprocessing_inside": list_preprocessing(model, kind),
        **files,
    }
    write_text(folder / CARD, json.dumps(card, indent=1, ensure_ascii=False) + "\n")


def list_preprocessing(model: Model, kind: SampleKind) -> dict[str, object]:
    """What is done to samples before the network."""
    return {"divide_by": 255 if kind.dtype == "uint8" else 1, "mean": list(model.mean), "std": list(model.std)}
