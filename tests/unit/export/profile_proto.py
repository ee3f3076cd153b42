"""profile.proto by Google's protobuf library: a reader of profiles that shares nothing with their writer."""

from __future__ import annotations

import gzip
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_INT64, _UINT64, _BOOL, _STRING, _MESSAGE = 3, 4, 8, 9, 11
_ONE, _MANY = 1, 3

# Message → (field, number, label, type or message): proto/profile.proto of github.com/google/pprof.
_MESSAGES: dict[str, list[tuple[str, int, int, int | str]]] = {
    "ValueType": [("type", 1, _ONE, _INT64), ("unit", 2, _ONE, _INT64)],
    "Label": [("key", 1, _ONE, _INT64), ("str", 2, _ONE, _INT64), ("num", 3, _ONE, _INT64)],
    "Sample": [
        ("location_id", 1, _MANY, _UINT64),
        ("value", 2, _MANY, _INT64),
        ("label", 3, _MANY, "Label"),
    ],
    "Mapping": [
        ("id", 1, _ONE, _UINT64),
        ("memory_start", 2, _ONE, _UINT64),
        ("memory_limit", 3, _ONE, _UINT64),
        ("file_offset", 4, _ONE, _UINT64),
        ("filename", 5, _ONE, _INT64),
        ("build_id", 6, _ONE, _INT64),
        ("has_functions", 7, _ONE, _BOOL),
        ("has_filenames", 8, _ONE, _BOOL),
        ("has_line_numbers", 9, _ONE, _BOOL),
        ("has_inline_frames", 10, _ONE, _BOOL),
    ],
    "Line": [("function_id", 1, _ONE, _UINT64), ("line", 2, _ONE, _INT64)],
    "Location": [
        ("id", 1, _ONE, _UINT64),
        ("mapping_id", 2, _ONE, _UINT64),
        ("address", 3, _ONE, _UINT64),
        ("line", 4, _MANY, "Line"),
    ],
    "Function": [
        ("id", 1, _ONE, _UINT64),
        ("name", 2, _ONE, _INT64),
        ("system_name", 3, _ONE, _INT64),
        ("filename", 4, _ONE, _INT64),
    ],
    "Profile": [
        ("sample_type", 1, _MANY, "ValueType"),
        ("sample", 2, _MANY, "Sample"),
        ("mapping", 3, _MANY, "Mapping"),
        ("location", 4, _MANY, "Location"),
        ("function", 5, _MANY, "Function"),
        ("string_table", 6, _MANY, _STRING),
        ("drop_frames", 7, _ONE, _INT64),
        ("time_nanos", 9, _ONE, _INT64),
        ("duration_nanos", 10, _ONE, _INT64),
        ("comment", 13, _MANY, _INT64),
        ("default_sample_type", 14, _ONE, _INT64),
    ],
}


def read_profile(data: bytes) -> Any:
    """Parse a gzipped profile; a field that the schema does not have is an error."""
    profile = _profile_class()()
    profile.ParseFromString(gzip.decompress(data))
    before = len(profile.SerializeToString())
    profile.DiscardUnknownFields()
    assert len(profile.SerializeToString()) == before, "fields that profile.proto does not have"
    return profile


def _profile_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="p", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, label, kind in fields:
            is_message = isinstance(kind, str)
            message.field.add(
                name=field,
                number=number,
                label=label,
                type=_MESSAGE if is_message else kind,
                type_name=f".p.{kind}" if is_message else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Profile"))
