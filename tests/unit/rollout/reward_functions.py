"""Reward functions as users write them, in a file that is imported fast."""

import ctypes
import os
import signal
import socket
import time
from contextlib import suppress
from functools import partial


def half(*args, **kwargs):
    return 0.5


def same(value):
    return value


def kind_of(value):
    """1 for what numpy or torch made."""
    return type(value).__module__.partition(".")[0] in ("numpy", "torch")


def numpy_value(text):
    import numpy

    return numpy.float32(text)


def sleeps(seconds, score=1.0):
    time.sleep(seconds)
    return score


def pid():
    return os.getpid()


def hangs(started):
    """Note the process, then hold it in C code, deaf to everything but SIGKILL."""
    with open(started, "w") as file:
        file.write(str(os.getpid()))
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL})
    while True:
        time.sleep(60)


def raises(message="no"):
    raise ValueError(message)


def crashes(how):
    if how == "segfault":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "recursion":
        return crashes(how)
    if how == "sys.exit":
        raise SystemExit(4)
    return 1.0


def dies_later(seconds):
    """Leave something behind that kills whoever is next."""
    import threading

    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
    return 1.0


def alarmed(seconds):
    """What math checkers do: an alarm, which only a main thread can set."""

    def stop(number, frame):
        raise TimeoutError("too long")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        time.sleep(seconds)
        return 1.0
    except TimeoutError:
        return 0.25
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def hungry(megabytes):
    return len(bytearray(megabytes << 20)) / (megabytes << 20)


def burns():
    while True:
        pass


def babbles():
    """Write into every socket that it finds, the one to the driver among them."""
    for fd in range(3, 64):
        with suppress(OSError):
            socket.socket(fileno=os.dup(fd)).sendall(b"\0\0\0\0\0\0\0\1{")
    return 1.0


def forks():
    """A child that comes back to where it was called."""
    child = os.fork()
    if child == 0:
        return 0.0
    os.waitpid(child, 0)
    return 1.0


class Threshold:
    def __init__(self, least):
        self.least = least

    def __call__(self, value):
        return value >= self.least

    def method(self, value):
        return value / self.least


class Judge:
    async def __call__(self, value):
        return value

    async def method(self, value):
        return value * 2


async def judged(value):
    return value


def returns_coroutine(value):
    return judged(value)


lambda_at_the_top = lambda value: value  # noqa: E731
doubled = partial(Threshold(0.5).method)
