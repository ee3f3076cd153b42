"""The supervision's turns and its end."""

from __future__ import annotations

import asyncio
import time
from unittest.mock import Mock

from bpfleakd.config import Config
from bpfleakd.daemon.supervision import Supervision
from bpfleakd.daemon.worker import Worker


def test_it_ends_also_at_the_moment_when_it_is_woken():
    """Else the daemon, which waits for it, would not end either."""

    async def wake_and_stop() -> None:
        with Worker() as worker:
            tracer = Mock(traced_count=lambda: 0)
            loop = asyncio.get_running_loop()
            supervision = Supervision(Config(), worker, tracer, Mock(), loop, lambda: None)
            supervision._events = Mock()
            turns: list[int] = []
            minute_ns = 60_000_000_000
            work = Mock(side_effect=lambda now_ns: turns.append(now_ns) or time.monotonic_ns() + minute_ns)
            supervision.supervisor = Mock(work=work)
            supervision.start()
            while not turns:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            supervision.wake()
            await asyncio.sleep(0)
            stopping = asyncio.create_task(supervision.stop())
            done, _ = await asyncio.wait({stopping}, timeout=5)
            assert done
            await stopping

    asyncio.run(asyncio.wait_for(wake_and_stop(), 20))
