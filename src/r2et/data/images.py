"""Pictures: pairs of handwritten digits, CIFAR-10, retinal scans, folders of the user's own.

Files are read as numbers only: nothing in them is run, and what unpacks to too much is refused.
"""

import io
import math
import pickle
import pickletools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from r2et.core.archives import COPIES, arrays_in
from r2et.core.inputs import Piece
from r2et.core.limits import TooLargeError, check_bytes
from r2et.core.naming import one_line
from r2et.data.dataset import Dataset
from r2et.data.division import SHARES, Shares, counted_pairs, hold_out, part_sizes, share_out
from r2et.data.roots import find
from r2et.data.structure import ItemStructure

Channels = Literal[1, 3]
Size = tuple[int, int]
"""(height, width), in pixels."""

Pixels = NDArray[np.uint8]
T = TypeVar("T")

DIGITS = ("3", "8")
DIGIT_PAIRS = (2400, 300, 600)
MNIST_SOURCE = (
    "LeCun, Cortes and Burges (1998), The MNIST database of handwritten digits, CC BY-SA 3.0; "
    "every 3 and 8."
)

CIFAR_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
CIFAR_SHAPE = (3, 32, 32)
CIFAR_BYTES = 3072
CIFAR_IMAGES = 60_000
MOST_BATCH = 2**28  # bytes, ten times those of an official batch
CIFAR_TRAINING_SHARE = 0.8
CIFAR_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
CIFAR_SOURCE = (
    "Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images, "
    "https://www.cs.toronto.edu/~kriz/cifar.html"
)

OCT_SIZE = (128, 128)
OCTID_SOURCE = (
    "Gholami, Roy, Parthasarathy and Lakshminarayanan (2020), OCTID: optical coherence tomography "
    "image database, https://doi.org/10.1016/j.compeleceng.2019.106532"
)
KERMANY_SOURCE = (
    "Kermany, Zhang and Goldbaum (2018), Large Dataset of Labeled Optical Coherence Tomography "
    "(OCT) and Chest X-Ray Images, https://doi.org/10.17632/rscbjbr9sj.3, CC BY 4.0"
)
KERMANY_STAND_IN = "retinal OCT scans of Kermany et al. 2018 instead of OCTID"

MOST_PIXELS = 50_000_000
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
SUFFIXES = (
    ".bmp",
    ".gif",
    ".jpeg",
    ".jpg",
    ".pgm",
    ".png",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
)
TURNED = (5, 6, 7, 8)  # the values of EXIF's orientation that swap height and width
ORIENTATION = 0x0112


# --- the sets


def mnist(root: Path | None = None) -> Dataset:
    """Pairs of the handwritten digits 3 and 8; they travel with the package and need no root."""
    path = resources.files("r2et.data") / "files" / "mnist_3_8.npz"
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        images = [stored["X_train"][:, None], stored["X_test"][:, None]]
        digits = np.concatenate([stored["y_train"], stored["y_test"]])
    divide = partial(counted_pairs, name="mnist", training=len(images[0]), counts=DIGIT_PAIRS)
    return Dataset(
        name="mnist",
        x=as_items(images),
        y=torch.from_numpy(digits == int(DIGITS[1])).long(),
        structure=image_structure((1, 28, 28), pairs=True),
        classes=DIGITS,
        target="same digit",
        source=MNIST_SOURCE,
        divide=divide,
    )


def cifar10(root: Path | None = None) -> Dataset:
    """Small colour pictures of ten kinds of things: the official batches, else a subset."""
    path = find(
        root,
        ("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10/cifar10_10000_2000.npz"),
        what="CIFAR-10",
        source=CIFAR_SOURCE,
    )
    read = read_cifar_batches if path.is_dir() else read_cifar_subset
    images, labels, training = read(path)
    items = as_items(images)
    tested = len(items) - training
    subset = (
        f"a subset of CIFAR-10: {training:,} + {tested:,} of {CIFAR_IMAGES:,} pictures"
        if len(items) < CIFAR_IMAGES
        else ""
    )
    return Dataset(
        name="cifar10",
        x=items,
        y=labels,
        structure=image_structure(CIFAR_SHAPE),
        classes=CIFAR_CLASSES,
        target="object",
        source=f"{CIFAR_SOURCE}; no licence stated.",
        stand_in=subset,
        divide=partial(hold_out, name="cifar10", training=training, share=CIFAR_TRAINING_SHARE),
    )


def retinal_scans(root: Path | None = None) -> Dataset:
    """Retinal scans of 128 x 128 pixels: OCTID's where the user has them, else a stand-in."""
    path = find(
        root,
        ("octid", "oct/oct_gray128.npz"),
        what="retinal OCT scans",
        source=f"{OCTID_SOURCE} (a folder for each class), or {KERMANY_SOURCE}",
    )
    if path.is_dir():
        own = read_folder(path, name="oct", size=OCT_SIZE, channels=1)
        return replace(own, target="diagnosis", source=f"{OCTID_SOURCE}. {own.source}")
    stored = read_arrays(
        path,
        {
            "X": (np.uint8, ("N", *OCT_SIZE)),
            "y": (np.integer, ("N",)),
            "patient": (np.integer, ("N",)),
            "classes": (np.str_, ("C",)),
        },
    )
    patients = torch.from_numpy(stored["patient"].astype(np.int64))
    return Dataset(
        name="oct",
        x=as_items([stored["X"][:, None]]),
        y=torch.from_numpy(stored["y"].astype(np.int64)),
        structure=image_structure((1, *OCT_SIZE)),
        classes=tuple(map(str, stored["classes"])),
        target="diagnosis",
        source=f"{KERMANY_SOURCE}; {len(patients):,} scans, made smaller.",
        stand_in=KERMANY_STAND_IN,
        divide=partial(share_out, name="oct", patients=patients, shares=SHARES),
    )


def image_structure(shape: tuple[int, int, int], *, pairs: bool = False) -> ItemStructure:
    """Images (C, H, W) of numbers in [0, 1], or pairs of them."""
    return ItemStructure(piece=Piece(shape=shape), pairs=pairs, bounds=(0.0, 1.0))


def as_items(batches: Sequence[Pixels]) -> Tensor:
    """All pictures, batch after batch, as numbers in [0, 1]: (M, C, H, W) float32."""
    count, shape = sum(map(len, batches)), batches[0].shape[1:]
    items = np.empty((count, *shape), dtype=np.float32)
    np.concatenate(batches, out=items)
    return torch.from_numpy(items).div_(255)


# --- arrays in files


def read_arrays(
    path: Path, expected: Mapping[str, tuple[type[np.generic], tuple[int | str, ...]]]
) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file by name, each of the expected kind and shape.

    A letter in a shape is a length that the file may choose, once for all arrays.
    """
    try:
        found, _ = arrays_in(path, expected)
        if missing := sorted(expected.keys() - found.keys()):
            raise ValueError(f"no array {missing[0]!r}")
    except TooLargeError:
        raise
    except Exception as problem:  # zip, zlib and numpy each have their own for a damaged file
        raise ValueError(
            f"{path} must be an npz file with {', '.join(expected)}, but reading it ended with "
            f"{one_line(problem)}: fetch it again."
        ) from problem
    lengths: dict[str, int] = {}
    for key, (kind, shape) in expected.items():
        array = found[key]
        letters = zip(shape, array.shape, strict=False)
        lengths |= {at: n for at, n in letters if isinstance(at, str) and at not in lengths}
        wanted = tuple(lengths.get(at, at) if isinstance(at, str) else at for at in shape)
        if array.shape != wanted or not np.issubdtype(array.dtype, kind):
            raise ValueError(
                f"{path} must hold {key} as {kind.__name__} of shape {in_words(wanted)}, got "
                f"{array.dtype} of shape {in_words(array.shape)}: fetch it again."
            )
    return found


def in_words(shape: Sequence[int | str]) -> str:
    """A shape for readers.

    >>> in_words((5, 28, 28))
    '5 x 28 x 28'
    """
    return " x ".join(map(str, shape))


Labelled = tuple[list[Pixels], Tensor, int]
"""Pictures in batches (N, C, H, W), all their classes (M,), how many of them are to train on."""


def read_cifar_subset(path: Path) -> Labelled:
    """The pictures of a subset of CIFAR-10 in one npz file, as they are stored."""
    stored = read_arrays(
        path,
        {
            "x_train": (np.uint8, ("N", 32, 32, 3)),
            "y_train": (np.integer, ("N",)),
            "x_test": (np.uint8, ("M", 32, 32, 3)),
            "y_test": (np.integer, ("M",)),
            "classes": (np.str_, (10,)),
        },
    )
    if tuple(stored["classes"]) != CIFAR_CLASSES:
        raise ValueError(
            f"{path} must name the classes {', '.join(CIFAR_CLASSES)}, got "
            f"{', '.join(stored['classes'])}: fetch it again."
        )
    images = [np.moveaxis(stored[key], -1, 1) for key in ("x_train", "x_test")]
    labels = np.concatenate([stored["y_train"], stored["y_test"]]).astype(np.int64)
    return images, torch.from_numpy(labels), len(images[0])


def read_cifar_batches(folder: Path) -> Labelled:
    """The pictures of the official batches of CIFAR-10, python version, as they are stored."""
    batches = [
        read_batch(find(folder, (name,), what=f"{name} of CIFAR-10", source=CIFAR_SOURCE))
        for name in (*CIFAR_BATCHES, "test_batch")
    ]
    images = [pixels for pixels, _ in batches]
    labels = torch.tensor([label for _, each in batches for label in each], dtype=torch.int64)
    return images, labels, len(labels) - len(images[-1])


class StoredType:
    """What a pickle calls a numpy type: its code."""

    def __init__(self, code: object, *rest: object) -> None:
        self.code = code.decode("latin-1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Pass over byte order and the like, which single bytes do not have."""


class StoredArray:
    """What a pickle calls a numpy array: its shape, type and bytes, which numpy never rebuilds."""

    def __init__(self, *about: object) -> None:
        self.state: object = ()

    def __setstate__(self, state: object) -> None:
        """Keep what the pickle says of the array."""
        self.state = state


class BatchReader(pickle.Unpickler):
    """A reader of batches that knows arrays of bytes and nothing else, so that nothing is run."""

    KNOWN: Mapping[str, type] = {
        "numpy.core.multiarray._reconstruct": StoredArray,
        "numpy._core.multiarray._reconstruct": StoredArray,
        "numpy.ndarray": StoredArray,
        "numpy.dtype": StoredType,
    }

    def find_class(self, module: str, name: str) -> type:
        """The class that stands for a name, which is refused unless arrays need it."""
        if (asked := f"{module}.{name}") not in self.KNOWN:
            raise pickle.UnpicklingError(f"it asks for {asked!r}, which no batch needs")
        return self.KNOWN[asked]


def read_batch(path: Path) -> tuple[Pixels, list[int]]:
    """The pictures of one batch, (N, 3, 32, 32), and their classes."""
    try:
        content = path.read_bytes() if path.stat().st_size <= MOST_BATCH else b""
        check_batch(content)
        return batch_of(BatchReader(io.BytesIO(content), encoding="bytes").load())
    except Exception as problem:  # a damaged pickle may fail in any way
        raise ValueError(
            f"{path} must be a batch of the python version of CIFAR-10, but reading it ended with: "
            f"{one_line(problem)}; fetch it again from {CIFAR_SOURCE}."
        ) from problem


def check_batch(content: bytes) -> None:
    """Refuse a pickle that names a place in its memory beyond all that it could have filled."""
    for operation, value, _ in pickletools.genops(content):
        if operation.name.endswith("PUT") and int(value or 0) > len(content):
            raise ValueError(f"it asks for place {value}")


def batch_of(content: object) -> tuple[Pixels, list[int]]:
    """What an unpickled batch holds, refused unless it is pictures and a class for each."""
    pairs = content.items() if isinstance(content, dict) else ()
    match {key.decode() if isinstance(key, bytes) else key: value for key, value in pairs}:
        case {
            "data": StoredArray(
                state=(_, (int(count), int(width)), StoredType(code="u1"), False, bytes(raw))
            ),
            "labels": list(labels),
        }:
            whole = width == CIFAR_BYTES and len(raw) == count * width and len(labels) == count
            if whole and set(labels) <= set(range(len(CIFAR_CLASSES))):
                return np.frombuffer(raw, np.uint8).reshape(count, *CIFAR_SHAPE), labels
    raise ValueError(f"no pictures of {CIFAR_BYTES:,} bytes with a class in 0..9 for each")


# --- files of pictures


@dataclass(frozen=True, kw_only=True)
class ImageHeader:
    """What a picture's header says of it."""

    size: Size
    grey: bool


def read_image(
    path: str | Path, *, size: Size | None = None, channels: Channels | None = None
) -> Tensor:
    """One picture of numbers in [0, 1], (C, H, W) float32, at full size unless one is given.

    Without `channels` a grey picture has 1, any other 3. Of several frames the first is read, and
    transparency is passed over.
    """
    check_request(size, channels)
    header = header_of(Path(path))
    wanted: Channels = channels or (1 if header.grey else 3)
    check_bytes(4 * COPIES * wanted * math.prod(size or header.size), str(path))
    return torch.from_numpy(pixels_of(Path(path), size or header.size, wanted))


def read_folder(
    folder: str | Path,
    *,
    name: str,
    size: Size | None = None,
    channels: Channels | None = None,
    shares: Shares = SHARES,
) -> Dataset:
    """The pictures of a folder with one folder for each class, divided by seed and class.

    Pictures of different sizes are brought to the `size` (height, width). Without `channels` they
    have 1 if all are grey, else 3. Other files are passed over, and the source says how many. Each
    picture counts as one of a patient of its own.
    """
    check_request(size, channels)
    part_sizes(0, shares)
    paths, classes, others = images_in(Path(folder))
    files = [path for each in paths for path in each]
    headers = [header_of(path) for path in files]
    height, width = size or common_size(files, headers)
    depth: Channels = channels or (1 if all(header.grey for header in headers) else 3)
    check_bytes(
        4 * (len(files) + COPIES) * depth * height * width,
        f"{folder}, {len(files):,} pictures of {in_words((height, width))} pixels,",
    )
    items = np.empty((len(files), depth, height, width), dtype=np.float32)
    for place, path in enumerate(files):
        items[place] = pixels_of(path, (height, width), depth)
    labels = torch.tensor([number for number, each in enumerate(paths) for _ in each])
    passed_over = f"; {others} other files passed over" if others else ""
    return Dataset(
        name=name,
        x=torch.from_numpy(items),
        y=labels,
        structure=image_structure((depth, height, width)),
        classes=classes,
        target="class",
        source=f"The folder {Path(folder).name}: {len(files):,} pictures{passed_over}.",
        divide=partial(share_out, name=name, patients=torch.arange(len(files)), shares=shares),
    )


def check_request(size: object, channels: object) -> None:
    """Refuse a size that is not two lengths, and channels other than those of grey or colour."""
    sides = size if isinstance(size, Sequence) else ()
    lengths = [side for side in sides if isinstance(side, int) and side > 0]
    if size is not None and not len(sides) == len(lengths) == 2:
        raise ValueError(f"size must be (height, width), two whole numbers >= 1, got {size!r}.")
    if channels not in (None, 1, 3):
        raise ValueError(f"channels must be 1 for grey or 3 for colour, got {channels!r}.")


def images_in(folder: Path) -> tuple[list[list[Path]], tuple[str, ...], int]:
    """The pictures of each class, the names of the classes, and how many files are no pictures."""
    if not folder.is_dir():
        raise ValueError(
            f"expected a folder that holds a folder of pictures for each class, but {folder} is "
            "none: give the path of one."
        )
    entries = sorted(folder.iterdir())
    homes = [each for each in entries if each.is_dir() and not each.name.startswith((".", "__"))]
    if len(homes) < 2:
        found = f"only {homes[0].name!r}" if homes else "none"
        raise ValueError(
            f"expected a folder of pictures for each of at least two classes in {folder}, got "
            f"{found}: sort the pictures into folders named like their classes."
        )
    inside = [sorted(home.iterdir()) for home in homes]
    paths = [[path for path in each if is_image(path)] for each in inside]
    for home, found_there in zip(homes, paths, strict=True):
        if not found_there:
            raise ValueError(
                f"every class needs pictures ({', '.join(SUFFIXES)}), but the folder {home} holds "
                "none: add some or remove it."
            )
    others = len(entries) - len(homes) + sum(map(len, inside)) - sum(map(len, paths))
    return paths, tuple(home.name for home in homes), others


def is_image(path: Path) -> bool:
    """Whether a file is called like a picture."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def common_size(files: Sequence[Path], headers: Sequence[ImageHeader]) -> Size:
    """The one size of all pictures."""
    for path, header in zip(files, headers, strict=True):
        if header.size != headers[0].size:
            raise ValueError(
                f"pictures must be of one size unless one is asked for, but {files[0]} has "
                f"{in_words(headers[0].size)} pixels and {path} {in_words(header.size)}: give "
                "size=(height, width)."
            )
    return headers[0].size


def decoded(path: Path, take: Callable[[Image.Image], T]) -> T:
    """What `take` makes of a picture file, which is refused if it is damaged or unpacks to much."""
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise Image.DecompressionBombError
            return take(image)
    except Image.DecompressionBombError as problem:
        raise ValueError(
            f"a picture must have at most {MOST_PIXELS:,} pixels, but {path} unpacks to more: make "
            "it smaller."
        ) from problem
    except Exception as problem:  # a damaged picture may fail in any way
        reason = problem.strerror if isinstance(problem, OSError) else None
        raise ValueError(
            f"cannot read {path} as a picture ({reason or one_line(problem)}): replace it or "
            "take it away."
        ) from problem


def header_of(path: Path) -> ImageHeader:
    """What the header of a picture file says."""
    return decoded(path, header_in)


def header_in(image: Image.Image) -> ImageHeader:
    """Size as shown, and whether the picture is grey."""
    turned = image.getexif().get(ORIENTATION) in TURNED
    size = image.size if turned else image.size[::-1]
    return ImageHeader(
        size=size, grey=image.mode in ("1", "L", "LA") or image.mode.startswith(("I", "F"))
    )


def pixels_of(path: Path, size: Size, channels: Channels) -> NDArray[np.float32]:
    """The numbers of a picture file in [0, 1]: (C, H, W); one without any light is refused."""
    pixels = decoded(path, partial(to_pixels, size=size, channels=channels))
    if not pixels.any():
        raise ValueError(
            f"a picture needs something to be explained, but all pixels of {path} are zero: "
            "replace it or take it away."
        )
    return pixels


def to_pixels(image: Image.Image, *, size: Size, channels: Channels) -> NDArray[np.float32]:
    """The numbers of an opened picture in [0, 1], upright and of that size: (C, H, W)."""
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith(("I", "F")):
        plane, most = sixteen_bits(upright), 65535.0
    else:
        plane, most = upright.convert("L" if channels == 1 else "RGB"), 255.0
    height, width = size
    if plane.size != (width, height):
        plane = plane.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.array(plane, dtype=np.float32)
    pixels /= np.float32(most)
    layers = np.moveaxis(np.atleast_3d(pixels), -1, 0)
    return np.array(np.broadcast_to(layers, (channels, height, width)), order="C")


def sixteen_bits(image: Image.Image) -> Image.Image:
    """A picture of 16 bits a pixel in a form that can be resized, which 8 bits would cut short."""
    values = np.asarray(image).astype(np.float32)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise ValueError("its numbers are not of 8 or 16 bits")
    return Image.fromarray(values)
