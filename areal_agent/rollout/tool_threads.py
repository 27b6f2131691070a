"""Threads for plain functions that may block. They are used again: starting one takes long.

``Thread.start`` waits until the new thread has had a turn; so does all that its caller holds up.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue

MAX_IDLE = 64
"""So many wait for work; more of them end."""

Job = tuple[str, Callable[[], None]]


class ToolThreads:
    """Gives each job a thread that has nothing else to do. None holds up the end of the process.

    The threads of ``asyncio.to_thread`` are few, and are waited for at the end: some tools that
    hang would stop all others, and the process would never end.
    """

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Job | None]] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def run(self, name: str, job: Callable[[], None]) -> None:
        """Have a thread of this name run a job, which raises nothing. Waits for nothing."""
        with self._lock:
            jobs = self._idle.pop() if self._idle else None
        if jobs is None:
            jobs = SimpleQueue[Job | None]()
            thread = threading.Thread(  # noqa: TID251 - see above
                target=self._serve, args=(jobs,), name=name, daemon=True
            )
            thread.start()
        jobs.put((name, job))

    async def aclose(self) -> None:
        """Let the threads end: those that are idle now, the others after their job."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for jobs in idle:
            jobs.put(None)

    def _serve(self, jobs: "SimpleQueue[Job | None]") -> None:
        thread = threading.current_thread()
        while (job := jobs.get()) is not None:
            thread.name, work = job
            work()
            del job, work  # they lead to what the tool was given
            thread.name = "tool, idle"
            with self._lock:
                if self._is_closed or len(self._idle) >= MAX_IDLE:
                    return
                self._idle.append(jobs)
