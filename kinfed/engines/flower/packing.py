"""Tensors as named, typed bytes: what crosses the wire. No pickle, nothing that runs when it is read."""

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from kinfed.params import Params

KINDS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
DTYPES = {str(kind).removeprefix("torch."): kind for kind in KINDS}
Facts = Mapping[str, int | float | bool | str]  # the numbers and words beside the tensors
Form = Mapping[str, tuple[str, tuple[int, ...]]]  # name -> dtype and shape


class Packed(NamedTuple):
    """One tensor."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def is_whole(self) -> bool:
        """Whether the bytes are as many as dtype and shape say."""
        whole = self.dtype in DTYPES and all(size >= 0 for size in self.shape)
        return whole and len(self.data) == prod(self.shape) * DTYPES[self.dtype].itemsize


Parcel = Mapping[str, Packed]


def pack(flat: Params) -> dict[str, Packed]:
    """Tensors as bytes."""
    return {name: Packed(dtype_of(t), tuple(t.shape), raw(t)) for name, t in flat.items()}


def unpack(parcel: Parcel, device: torch.device | str = "cpu") -> Params:
    """The tensors again; every one must be whole."""
    return {name: tensor_of(packed).to(device) for name, packed in parcel.items()}


def form_of(parcel: Parcel) -> dict[str, tuple[str, tuple[int, ...]]]:
    """What a parcel holds, without its values."""
    return {name: (packed.dtype, packed.shape) for name, packed in parcel.items()}


def bytes_in(parcel: Parcel) -> int:
    """Bytes of all tensors."""
    return sum(len(packed.data) for packed in parcel.values())


def bytes_of_form(form: Form) -> int:
    """Bytes that tensors of this form have."""
    return sum(prod(shape) * DTYPES[dtype].itemsize for dtype, shape in form.values())


def is_finite(flat: Params) -> bool:
    """Whether no tensor holds a NaN or an infinity."""
    return all(bool(torch.isfinite(t).all()) for t in flat.values() if t.is_floating_point())


def dtype_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def raw(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def tensor_of(packed: Packed) -> Tensor:
    kind = DTYPES[packed.dtype]
    if not packed.data:
        return torch.empty(packed.shape, dtype=kind)
    values = torch.frombuffer(bytearray(packed.data), dtype=torch.uint8 if kind == torch.bool else kind)
    return values.to(kind).reshape(packed.shape)
