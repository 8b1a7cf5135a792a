"""Archives and files of arrays, whose headers are looked at before anything in them is unpacked."""

import math
import os
import struct
import sys
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from r2et.core.limits import TEXT, check_bytes
from r2et.core.naming import one_line

COPIES = 3  # of an array, in other precision or without its diagonal, before it is of use
MOST_MEMBERS = 10_000
PER_MEMBER = 1024  # bytes of an archive's directory, far above what the name of a member takes
DAMAGED = (OSError, EOFError, NotImplementedError, BadZipFile, zlib.error, struct.error)
UNREADABLE = (
    *(ValueError, TypeError, KeyError, OverflowError, RuntimeError, SyntaxError, MemoryError),
    *(TokenError, *DAMAGED),
)
"""What reading a damaged archive can end with."""


@contextmanager
def opened(path: str | Path | IO[bytes]) -> Iterator[ZipFile]:
    """A zip archive to read from, refused if it is damaged, or has unusual members or too many."""
    name = path if isinstance(path, str | Path) else "the archive"
    try:
        with Path(path).open("rb") if isinstance(path, str | Path) else path as file:
            _check_directory(file, str(name))
            with ZipFile(file) as archive:
                for each in archive.infolist():
                    if each.compress_type not in (ZIP_STORED, ZIP_DEFLATED) or each.flag_bits & 1:
                        raise ValueError(
                            f"{each.filename!r} in {name} is encrypted or packed in an unusual "
                            "way: write the archive without either."
                        )
                yield archive
    except DAMAGED as problem:
        said = one_line(problem)
        raise ValueError(f"{name} is no whole zip archive ({said}): fetch it again.") from problem


def _check_directory(file: IO[bytes], name: str) -> None:
    """Refuse an archive by the length of its directory, which opening it would read whole."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - 2**16 - 128)
    file.seek(start)
    tail = file.read()
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or len(tail) < end + 22:
        raise BadZipFile(f"{name} is no zip archive, or was cut short")
    length = struct.unpack_from("<I", tail, end + 12)[0]
    wide = end - 20 - 56  # of archives beyond 4 GB
    if wide >= 0 and tail[end - 20 : end - 16] == b"PK\x06\x07":
        length = struct.unpack_from("<Q", tail, wide + 40)[0]
    if length > MOST_MEMBERS * PER_MEMBER or length > size:
        raise ValueError(
            f"{name} has a directory of {length:,} bytes, of more than {MOST_MEMBERS:,} members: "
            "give one with fewer."
        )
    file.seek(0)


def arrays_in(
    path: str | Path | IO[bytes], wanted: Collection[str]
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Those of the arrays wanted that an npz archive has, and the names of all of them.

    Only plain numbers and words are read; what an array asks for is checked against what is there.
    """
    name = path if isinstance(path, str | Path) else "the archive"
    with opened(path) as archive:
        members = {
            each.filename.removesuffix(".npy"): each
            for each in archive.infolist()
            if each.filename.endswith(".npy")
        }
        chosen = {key: members[key] for key in wanted if key in members}
        sizes = [_asked(archive, each, f"{key!r} in {name}") for key, each in chosen.items()]
        check_bytes(COPIES * sum(sizes), f"{name}, with the work on it,")
        return {key: _array(archive, each) for key, each in chosen.items()}, list(members)


def _asked(archive: ZipFile, info: ZipInfo, what: str) -> int:
    """The bytes that a stored array asks for, refused if the archive does not hold them."""
    with archive.open(info) as file:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"{what} is no array of plain numbers or words")
        shape, _, dtype = read(file)
        held = info.file_size - file.tell()
    if dtype.hasobject:
        raise ValueError(f"{what} holds pickled objects, which are not read")
    if dtype.fields is not None or not dtype.itemsize or any(each < 0 for each in shape):
        raise ValueError(f"{what} is no array of plain numbers or words")
    asked: int = math.prod(shape) * dtype.itemsize
    check_bytes(COPIES * asked, f"{what}, with the work on it,")
    if asked != held:
        raise ValueError(f"{what} should hold {asked:,} bytes, but has {held:,}: it was changed")
    return asked


def _array(archive: ZipFile, info: ZipInfo) -> NDArray[Any]:
    with archive.open(info) as file:
        found: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    if found.dtype.kind == "U":
        codes = np.frombuffer(
            found.tobytes(), np.dtype(np.uint32).newbyteorder(found.dtype.byteorder)
        )
        if (codes > sys.maxunicode).any() or ((codes >= 0xD800) & (codes <= 0xDFFF)).any():
            raise ValueError(f"{info.filename} holds words of characters that there are not")
    return found


def check_tensors(path: Path) -> None:
    """Refuse a safetensors file that, or the header of which, would take too much memory.

    That header and tensors lie within the file is checked by the library that reads it.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        check_bytes(size, str(path))
        length = int.from_bytes(file.read(8), "little")
        check_bytes(TEXT * min(length, size), f"the header of {path}")
