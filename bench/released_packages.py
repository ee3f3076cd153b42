"""Releases of packages of PyPI, npm and Debian that leak, and the fixed releases.

Each has a small program that repeats what makes it leak. Whether and how much it leaks was measured without
bpfleakd: resident memory after some hundred thousand calls, in both releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Registry(Enum):
    """Where a package comes from, and so the language of its program."""

    PYPI = auto()  # Python
    NPM = auto()  # JavaScript
    DEBIAN = auto()  # Ruby


@dataclass(frozen=True, slots=True)
class ReleasedLeak:
    """`program` defines step(number), called `at_once` times each 20 ms.

    `leaks` and `repaired` are requirements of pip or npm, separated by spaces, or suite/package of Debian;
    `repaired` is "" if no release has a fix. The headline of the worst site must name one of the functions
    `blamed`. For objects of JavaScript the process must get the verdict leak: nothing outside the program
    tells which function keeps them.
    """

    leaks: str
    repaired: str
    program: str
    blamed: tuple[str, ...]
    why: str
    at_once: int = 5
    registry: Registry = Registry.PYPI


RELEASED_LEAKS = (
    ReleasedLeak(
        "attrs==23.1.0",
        "",
        "import attr\ndef step(number):\n    attr.make_class(f'Row{number}', ['a', 'b'])\n",
        ("_make_method",),
        "the source of each class that is made stays in linecache.cache",
        1,
    ),
    ReleasedLeak(
        "marshmallow==3.20.1",
        "",
        "from marshmallow import Schema, fields\n"
        "def step(number):\n    type(f'Schema{number}', (Schema,), {'x': fields.Int()})\n",
        ("register",),
        "every schema class stays in class_registry",
        1,
    ),
    ReleasedLeak(
        "dogpile.cache==1.2.2",
        "",
        "from dogpile.cache import make_region\n"
        "region = make_region().configure('dogpile.cache.memory', expiration_time=1)\n"
        "def step(number):\n    region.get_or_create(f'page {number}', lambda: {'number': number})\n",
        ("MemoryBackend.set",),
        "what has expired is never removed",
    ),
    ReleasedLeak(
        "pint==0.20.1",
        "",
        "import pint\nregistry = pint.UnitRegistry()\n"
        "def step(number):\n    registry.parse_units(f'meter ** {number}')\n",
        ("PlainRegistry._parse_units",),
        "every unit that was ever parsed stays in a cache",
        2,
    ),
    ReleasedLeak(
        "prometheus_client==0.17.1",
        "",
        "from prometheus_client import Counter\nrequests = Counter('requests', 'Requests', ['customer'])\n"
        "def step(number):\n    requests.labels(f'customer {number}').inc()\n",
        ("MetricWrapperBase.labels",),
        "a time series for each value of a label",
    ),
    ReleasedLeak(
        "aiohttp==3.10.10",
        "aiohttp==3.10.11",
        "import asyncio\n"
        "from aiohttp import web\n"
        "from aiohttp.test_utils import make_mocked_request\n"
        "@web.middleware\n"
        "async def middleware(request, handler):\n    return await handler(request)\n"
        "application = web.Application(middlewares=[middleware])\n"
        "application.freeze()\n"
        "loop = asyncio.new_event_loop()\n"
        "async def ask(number):\n"
        "    try:\n"
        "        await application._handle(make_mocked_request('GET', f'/none{number}'))\n"
        "    except web.HTTPNotFound:\n        pass\n"
        "def step(number):\n    loop.run_until_complete(ask(number))\n",
        ("step", "make_mocked_request", "make_mocked_coro"),
        "each page that is not there gets a place in a cache (CVE-2024-52303)",
        1,
    ),
    ReleasedLeak(
        "greenlet==2.0.0.post0",
        "greenlet==2.0.1",
        "import greenlet\n"
        "def hello():\n    pass\n"
        "def step(number):\n    greenlet.greenlet(hello, greenlet.getcurrent()).switch()\n",
        ("greenlet::UserGreenlet::inner_bootstrap",),
        "the Python stack of each greenlet that ends is not freed",
        1,
    ),
    ReleasedLeak(
        "multidict==6.3.1",
        "multidict==6.4.4",
        "from multidict import CIMultiDict\ndef step(number):\n    CIMultiDict({'User-Agent': 'test'})\n",
        ("step",),
        "each mapping that is made",
        20,
    ),
    ReleasedLeak(
        "multidict==6.6.3",
        "multidict==6.6.4",
        "from multidict import MultiDict\n"
        "def step(number):\n"
        "    pages = MultiDict()\n"
        "    pages[f'key {number}'] = str(number)\n"
        "    del pages[f'key {number}']\n",
        ("step",),
        "each value that is deleted",
        20,
    ),
    ReleasedLeak(
        "multidict==6.7.0",
        "multidict==7.2.1",
        "from multidict import MultiDict\n"
        "pages = MultiDict((f'key {number}', number) for number in range(20))\n"
        "def step(number):\n    pages.items() - {('x', 'y')}\n",
        ("step",),
        "a tuple for each item of a view that another set is subtracted from",
    ),
    ReleasedLeak(
        "ujson==5.11.0",
        "ujson==5.12.0",
        "import ujson\ntext = str(2**200)\ndef step(number):\n    ujson.loads(text)\n",
        ("step",),
        "the text of each large integer (CVE-2026-32874)",
        20,
    ),
    ReleasedLeak(
        "ujson==5.12.0",
        "ujson==5.12.1",
        "import ujson\n"
        "class Full:\n    def write(self, text):\n        raise OSError(28, 'no space')\n"
        "def step(number):\n"
        "    try:\n        ujson.dump({'text': 'x' * 1000}, Full())\n"
        "    except OSError:\n        pass\n",
        ("step",),
        "the text, each time that write() fails (CVE-2026-44660)",
    ),
    ReleasedLeak(
        "msgpack==1.2.2",
        "msgpack==1.2.3",
        "import msgpack\n"
        "data = msgpack.packb({(1, 2): ['x' * 200, 'y' * 100]})\n"
        "def step(number):\n"
        "    try:\n        msgpack.unpackb(data, use_list=False, strict_map_key=True)\n"
        "    except ValueError:\n        pass\n",
        ("step", "unpackb"),
        "what was unpacked before a key of a wrong type (GHSA-j586-36cw-2gc2)",
    ),
    ReleasedLeak(
        "pendulum==2.1.2",
        "pendulum==3.0.0",
        "import pendulum\n"
        "def step(number):\n"
        "    try:\n        pendulum.parse('20120-33-99 x')\n"
        "    except Exception:\n        pass\n",
        ("_parse_iso8601", "parse", "_parse", "step"),
        "the state of a parser that fails",
        20,
    ),
    ReleasedLeak(
        "protobuf==4.22.1",
        "protobuf==4.24.4",
        "from google.protobuf.type_pb2 import Type\n"
        "message = Type()\n"
        "def step(number):\n    message.source_context.ByteSize()\n",
        ("step",),
        "the text that ByteSize() encodes to be measured",
        20,
    ),
    ReleasedLeak(
        "cbor2==5.6.5",
        "cbor2==6.0.1",
        "import cbor2\n"
        "data = b'\\xbf\\x01\\xa1\\x02\\xa1\\x03\\x64\\xff\\xfe\\xfd\\xfc'\n"
        "def step(number):\n"
        "    try:\n        cbor2.loads(data)\n"
        "    except cbor2.CBORDecodeError:\n        pass\n",
        ("step",),
        "maps around a text that is no UTF-8",
    ),
    ReleasedLeak(
        "pydantic==2.5.2 pydantic-core==2.14.5",
        "pydantic==2.5.3 pydantic-core==2.14.6",
        "from pydantic import BaseModel, TypeAdapter\n"
        "class Bar(BaseModel): ...\n"
        "class Foo(BaseModel):\n    children: list['Foo']\n    bar: Bar\n"
        "def step(number):\n"
        "    TypeAdapter(list[Foo]).validate_python([{'children': [], 'bar': Bar()}])\n",
        ("step", "TypeAdapter.__init__", "create_schema_validator", "TypeAdapter.validate_python"),
        "validators of models that refer to themselves",
        1,
    ),
    ReleasedLeak(
        "pydantic==2.7.0",
        "pydantic==2.7.1",
        "from collections.abc import Iterable\n"
        "from pydantic import BaseModel\n"
        "class Trace(BaseModel):\n    elements: Iterable[int]\n"
        "def step(number):\n    Trace(elements=[1, 2, 3])\n",
        ("BaseModel.__init__", "step"),
        "each iterable of a model",
    ),
    ReleasedLeak(
        "pymongo==4.15.2",
        "pymongo==4.15.3",
        "import bson\n"
        "class Other: pass\n"
        "document = {'a': Other()}\n"
        "def step(number):\n"
        "    try:\n        bson.encode(document)\n"
        "    except bson.errors.InvalidDocument:\n        pass\n",
        ("encode", "step"),
        "the message of InvalidDocument",
        20,
    ),
    ReleasedLeak(
        "python-bsonjs==0.5.0",
        "python-bsonjs==0.6.0",
        "import bsonjs\n"
        'data = bsonjs.loads(\'{"a": "%s"}\' % ("x" * 500))\n'
        "def step(number):\n"
        "    try:\n        bsonjs.dumps(data, mode=9)\n"
        "    except ValueError:\n        pass\n",
        ("step",),
        "the document, where the mode is unknown",
    ),
    ReleasedLeak(
        "confluent-kafka==2.12.2",
        "confluent-kafka==2.13.2",
        "from confluent_kafka import Producer\n"
        "producer = Producer({'bootstrap.servers': '127.0.0.1:9', 'log_level': 0,\n"
        "                     'queue.buffering.max.messages': 1})\n"
        "def step(number):\n"
        "    try:\n        producer.produce('topic', b'x', headers=[('name', b'y' * 300)])\n"
        "    except BufferError:\n        pass\n"
        "    producer.poll(0)\n",
        ("step",),
        "the headers of each message for which there is no room",
    ),
    ReleasedLeak(
        "lz4==4.0.1",
        "lz4==4.1.0",
        "import lz4.frame\n"
        "good = lz4.frame.compress(bytes(i * i * 7 % 251 for i in range(100_000)), content_checksum=True)\n"
        "def step(number):\n"
        "    try:\n        lz4.frame.decompress(good[:-4] + b'abcd')\n"
        "    except RuntimeError:\n        pass\n",
        ("step",),
        "the buffer of a frame that cannot be decompressed",
        1,
    ),
    ReleasedLeak(
        "msgspec==0.14.1",
        "msgspec==0.14.2",
        "import msgspec\n"
        "decoder = msgspec.msgpack.Decoder(tuple[int, ...])\n"
        "data = msgspec.msgpack.encode(tuple(range(1000, 1020)))\n"
        "def step(number):\n    decoder.decode(data)\n",
        ("step",),
        "the items of tuples of more than 16",
    ),
    ReleasedLeak(
        "zod@4.0.0",
        "zod@4.3.6",
        "const z = require('zod');\n"
        "function step(number) { z.object({a: z.string().meta({title: `field ${number}`})}); }\n",
        (),
        "the description of each schema stays in a registry",
        1,
        registry=Registry.NPM,
    ),
    ReleasedLeak(
        "mem@3.0.1",
        "mem@4.3.0",
        "const page = require('mem')((name) => ({name, text: `text of ${name}`}), {maxAge: 1000});\n"
        "function step(number) { page(`page ${number}`); }\n",
        (),
        "what has expired is never removed",
        10,
        registry=Registry.NPM,
    ),
    ReleasedLeak(
        "debug@4.1.1",
        "debug@4.3.7",
        "const debug = require('debug');\nfunction step(number) { debug(`request ${number}`)('begins'); }\n",
        (),
        "each logger that is made",
        10,
        registry=Registry.NPM,
    ),
    ReleasedLeak(
        "bookworm/ruby3.1",
        "trixie/ruby3.3",
        'TEXT = "a page of a site".encode(Encoding::UTF_32LE)\n'
        "def step(number)\n  TEXT.grapheme_clusters\nend\n",
        ("onig_compile_ruby",),
        "Ruby 3.1.2: the expression that grapheme_clusters compiles for texts that are not UTF-8 (bug 20150)",
        1,
        registry=Registry.DEBIAN,
    ),
)
