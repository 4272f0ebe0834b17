"""The records of a TensorBoard event file, also of one that was damaged or cut off.

A record is its length (8 bytes), a checksum of the length (4), the data, and a checksum of the data (4); TFRecord in
TensorFlow's documentation. TensorBoard's own reader ends at the first record that is damaged.
"""

import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.summary.writer.record_writer import RecordWriter

LENGTH = struct.Struct("<QI")  # with its checksum
CHECKSUM = struct.Struct("<I")
# The length of a record below 16 MiB; it is not 0, as in a stretch of zeros. Matches may overlap, so it has no width.
BEGIN = re.compile(rb"(?=(?!\0\0\0)...\0\0\0\0\0)", re.DOTALL)


class Records(NamedTuple):
    """The content of an event file."""

    data: list[bytes]
    num_damaged: int  # damaged stretches between intact records, and records that repeat an earlier one
    is_cut_off: bool  # the last record is incomplete, as a killed process leaves it


def read_records(content: bytes) -> Records:
    """All records that are intact, each once: no two have the same time, tag and step unless bytes were copied."""
    data: dict[bytes, None] = {}
    position, num_damaged = 0, 0
    while position < len(content):
        end = _end_of_record(content, position)
        if end is None:
            following = _next_record(content, position + 1)
            if following is None:
                is_cut_off = _is_begun(content, position)
                return Records(list(data), num_damaged + (not is_cut_off), is_cut_off)
            position, num_damaged = following, num_damaged + 1
            continue
        record = content[position + LENGTH.size : end - CHECKSUM.size]
        num_damaged += record in data
        data[record] = None
        position = end
    return Records(list(data), num_damaged, is_cut_off=False)


def write_records(file: Path, records: Iterable[bytes]) -> None:
    """Write an event file whole or not at all."""
    temporary = file.with_name(f"{file.name.replace('tfevents', 'tmp')}")  # TensorBoard reads any name with tfevents
    with temporary.open("wb") as stream:
        writer = RecordWriter(stream)
        for record in records:
            writer.write(record)
    temporary.replace(file)


def _end_of_record(content: bytes, position: int) -> int | None:
    """Where the record that begins here ends; None if none begins here that is whole and intact."""
    length = _length(content, position)
    if length is None:
        return None
    begin = position + LENGTH.size
    end = begin + length + CHECKSUM.size
    if end > len(content):
        return None
    (checksum,) = CHECKSUM.unpack_from(content, begin + length)
    return end if masked_crc32c(content[begin : begin + length]) == checksum else None


def _length(content: bytes, position: int) -> int | None:
    if position + LENGTH.size > len(content):
        return None
    length, checksum = LENGTH.unpack_from(content, position)
    return int(length) if masked_crc32c(content[position : position + 8]) == checksum else None


def _next_record(content: bytes, position: int) -> int | None:
    for candidate in BEGIN.finditer(content, position):
        if _end_of_record(content, candidate.start()) is not None:
            return candidate.start()
    return None


def _is_begun(content: bytes, position: int) -> bool:
    """Whether the rest is the beginning of a record: less than its length, or a length that goes beyond the end."""
    if position + LENGTH.size > len(content):
        return True
    length = _length(content, position)
    return length is not None and position + LENGTH.size + length + CHECKSUM.size > len(content)
